"""The client of plait: a live copy of a thread's state, with asyncio or without."""

from plait_client.client import Connecting, connect
from plait_client.edit import AwaitableEdit, Edit
from plait_client.errors import CallError, ClientError, Closed, Disconnected, Refused, TooLarge, Unanswered
from plait_client.listeners import Change, Changes
from plait_client.listing import ListedThread, ThreadPage, list_threads, list_threads_sync
from plait_client.room import Room
from plait_client.room_files import FileInfo, RoomFiles
from plait_client.room_messages import RoomMessages
from plait_client.room_query import RoomQuery
from plait_client.room_tasks import RoomTasks
from plait_client.session import Session
from plait_client.sync import SyncChanges, SyncRoom, connect_sync
from plait_client.sync_files import SyncFiles
from plait_client.sync_messages import SyncMessages
from plait_client.sync_query import SyncQuery
from plait_client.sync_tasks import SyncTasks
from plait_schemas.conversation import Item, PendingApproval
from plait_schemas.task_run import TaskRun

__all__ = [
    "AwaitableEdit",
    "CallError",
    "Change",
    "Changes",
    "ClientError",
    "Closed",
    "Connecting",
    "Disconnected",
    "Edit",
    "FileInfo",
    "Item",
    "ListedThread",
    "PendingApproval",
    "Refused",
    "Room",
    "RoomFiles",
    "RoomMessages",
    "RoomQuery",
    "RoomTasks",
    "Session",
    "SyncChanges",
    "SyncFiles",
    "SyncMessages",
    "SyncQuery",
    "SyncRoom",
    "SyncTasks",
    "TaskRun",
    "ThreadPage",
    "TooLarge",
    "Unanswered",
    "connect",
    "connect_sync",
    "list_threads",
    "list_threads_sync",
]
