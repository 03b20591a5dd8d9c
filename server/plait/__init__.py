"""Live, durable, shared state: named threads, kept in SQLite, pushed to every socket."""

from plait.actor.connection import Connection, Source
from plait.actor.current import current
from plait.actor.endpoints import endpoint
from plait.actor.events import Event
from plait.actor.handle import Handle
from plait.actor.query import query
from plait.actor.rpc import Stream, rpc
from plait.actor.thread import Thread
from plait.agents.context import Context, current_context
from plait.agents.execution.definitions import Agent, Handoff, Mcp, Model, Prompt, PromptTool, Side, Subagent
from plait.agents.execution.hooks import Block, Hooks, ToolCall
from plait.agents.execution.run_code import RunCode
from plait.agents.execution.state import ExecutionState
from plait.agents.execution.thread_agents import ThreadAgents
from plait.agents.execution.tools import ToolResult, Variable, tool
from plait.agents.run import Interruption
from plait.agents.session import Session
from plait.agents.thread_ids import ThreadIdProvider
from plait.app import Plait
from plait.author_code import Interrupted
from plait.code.code_run import CodeLog, CodeResult, CodeRun
from plait.errors import (
    Busy,
    CallFailed,
    Conflict,
    CorruptThread,
    Destroyed,
    Fenced,
    Forbidden,
    Gap,
    Indeterminate,
    InvalidArguments,
    InvalidState,
    MethodNotFound,
    MigrationFailed,
    NewerState,
    NotFound,
    Outdated,
    PlaitError,
    Readonly,
    Reject,
    RolledBack,
    SqlError,
    StoreError,
    Terminated,
    TooLarge,
    TooMany,
    TurnTimeout,
    Unanswerable,
    Unauthenticated,
    Unavailable,
)
from plait.instruments.protocol import Instruments, NoInstruments
from plait.kv.kv import KV, KVEntry, KVStats
from plait.kv.user import User
from plait.limits import Limits
from plait.parts.env.env import Env, ThreadEnv
from plait.parts.env.secret import Secret
from plait.parts.env.user_env import UserEnv
from plait.parts.family.rows import Child
from plait.parts.family.thread_family import Family, Spawned, ThreadFamily
from plait.parts.files.file import File, FileMatch, FileStats, Upload
from plait.parts.files.thread_files import Files, ThreadFiles
from plait.parts.messages.message import Message, MessageSubagent, Page
from plait.parts.messages.message_hooks import MessageHooks
from plait.parts.messages.message_stream import MessageStream
from plait.parts.messages.thread_messages import Messages, ThreadMessages
from plait.parts.schedule.effects import effect
from plait.parts.schedule.rows import EffectRun
from plait.parts.schedule.schedule import Planned, Schedule, Scheduled, ThreadSchedule
from plait.parts.sql.sql import Sql
from plait.parts.sql.thread_sql import ThreadSql
from plait.parts.tasks.journal import ReplayDiverged
from plait.parts.tasks.rows import TaskRun
from plait.parts.tasks.step import Approval, Step
from plait.parts.tasks.step_errors import GiveUp, StepFailed, Unknown
from plait.parts.tasks.task import task
from plait.parts.tasks.thread_tasks import TaskReceipt, Tasks, ThreadTasks
from plait.parts.values import ThreadValues, Values
from plait.state.authors import Stretch
from plait.state.change_log import Change
from plait.state.commit import Commit
from plait.state.edit import Edit
from plait.state.migrations import migrate
from plait.state.principal import Principal
from plait.state.retention import Retention
from plait.state.texts import Text
from plait.state.transaction import Transaction
from plait.store.memory import MemoryStore
from plait.store.protocol import Store, ThreadRow
from plait.store.sqlite.store import SqliteStore
from plait.store.thread_rows import ThreadKey
from plait.web.authentication import Action

__all__ = [
    "KV",
    "Action",
    "Agent",
    "Approval",
    "Block",
    "Busy",
    "CallFailed",
    "Change",
    "Child",
    "CodeLog",
    "CodeResult",
    "CodeRun",
    "Commit",
    "Conflict",
    "Connection",
    "Context",
    "CorruptThread",
    "Destroyed",
    "Edit",
    "EffectRun",
    "Env",
    "Event",
    "ExecutionState",
    "Family",
    "Fenced",
    "File",
    "FileMatch",
    "FileStats",
    "Files",
    "Forbidden",
    "Gap",
    "GiveUp",
    "Handle",
    "Handoff",
    "Hooks",
    "Indeterminate",
    "Instruments",
    "Interrupted",
    "Interruption",
    "InvalidArguments",
    "InvalidState",
    "KVEntry",
    "KVStats",
    "Limits",
    "Mcp",
    "MemoryStore",
    "Message",
    "MessageHooks",
    "MessageStream",
    "MessageSubagent",
    "Messages",
    "MethodNotFound",
    "MigrationFailed",
    "Model",
    "NewerState",
    "NoInstruments",
    "NotFound",
    "Outdated",
    "Page",
    "Plait",
    "PlaitError",
    "Planned",
    "Principal",
    "Prompt",
    "PromptTool",
    "Readonly",
    "Reject",
    "ReplayDiverged",
    "Retention",
    "RolledBack",
    "RunCode",
    "Schedule",
    "Scheduled",
    "Secret",
    "Session",
    "Side",
    "Source",
    "Spawned",
    "Sql",
    "SqlError",
    "SqliteStore",
    "Step",
    "StepFailed",
    "Store",
    "StoreError",
    "Stream",
    "Stretch",
    "Subagent",
    "TaskReceipt",
    "TaskRun",
    "Tasks",
    "Terminated",
    "Text",
    "Thread",
    "ThreadAgents",
    "ThreadEnv",
    "ThreadFamily",
    "ThreadFiles",
    "ThreadIdProvider",
    "ThreadKey",
    "ThreadMessages",
    "ThreadRow",
    "ThreadSchedule",
    "ThreadSql",
    "ThreadTasks",
    "ThreadValues",
    "TooLarge",
    "TooMany",
    "ToolCall",
    "ToolResult",
    "Transaction",
    "TurnTimeout",
    "Unanswerable",
    "Unauthenticated",
    "Unavailable",
    "Unknown",
    "Upload",
    "User",
    "UserEnv",
    "Values",
    "Variable",
    "current",
    "current_context",
    "effect",
    "endpoint",
    "migrate",
    "query",
    "rpc",
    "task",
    "tool",
]
