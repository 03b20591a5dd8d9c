"""What authors' code hands over leaves as JSON that says the same, or not at all, by every way."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from plait import Context, InvalidArguments, Plait, PlaitError, Schedule, Stream, Tasks, Thread, Values, rpc, step, task
