"""The role of a process: alone, a worker, or a node of a cluster."""

import os
import socket
from collections.abc import Mapping
from typing import Final, NamedTuple

from plait.cluster.cell_directory import find_directory
from plait.cluster.cluster_owners import ClusterOwners
from plait.cluster.directory import NodeRecord
from plait.cluster.member import SINGLE
from plait.cluster.node_config import NodeConfig
from plait.cluster.owners import ALONE, Owners, Worker, Workers
from plait.settings import Settings
from plait.store.engines import ENGINES
from plait.store.protocol import Store
from plait.store.urls import open_share, open_store
from plait.web.links.folder import Folder
from plait.web.links.links import Network
from plait.web.links.tcp import Tcp

__all__ = ["ProcessRole", "find_role"]

# Seconds, besides the shutdown timeouts, for which a worker waits for its earlier process to end.
_PATIENCE: Final = 30.0


class ProcessRole(NamedTuple):
    """The store of this process, the owners of the threads in it, and the network to the other processes."""

    store: Store
    owners: Owners
    network: Network | None
    # Whether no process of this server has started before.
    is_first: bool = True


def find_role(
    settings: Settings, given: Store | None, worker: Worker | None, versions: Mapping[str, int]
) -> ProcessRole:
    """Return the role of this process, as its environment variables say. `given` is a store that the app has made.

    `versions` are the `state_version` of each kind. Raises ValueError and StoreError.
    """
    if (config := NodeConfig.from_environment()) is not None:
        return _join_cluster(settings, given, config, worker, versions)
    if worker is not None:
        return _share_files(settings, given, worker)
    store = open_store(settings.store) if given is None else given
    if not store.is_shared or (directory := find_directory(store)) is None:
        return ProcessRole(store, ALONE, None)
    record = NodeRecord("", SINGLE, f"{socket.gethostname()}, process {os.getpid()}", versions=versions)
    return ProcessRole(store, ClusterOwners(record, directory), None)


def _join_cluster(
    settings: Settings, given: Store | None, config: NodeConfig, worker: Worker | None, versions: Mapping[str, int]
) -> ProcessRole:
    count, is_first = 1, True
    if worker is not None:
        config, count, is_first = config.for_worker(worker.number), worker.count, worker.is_first
    store = open_store(settings.store) if given is None else given
    directory = find_directory(store) if store.is_shared else None
    if directory is None:
        what = type(given).__name__ if given is not None else settings.store.partition("://")[0] + "://"
        shared = ", ".join(each.example for each in ENGINES if each.is_shared)
        raise ValueError(
            f"a cluster needs a store that all of its nodes use, such as {shared}; {what} is for one machine"
        )
    owners = ClusterOwners(NodeRecord("", config.name, config.address, versions=versions), directory, workers=count)
    return ProcessRole(store, owners, Tcp(config, owners), is_first)


def _share_files(settings: Settings, given: Store | None, worker: Worker) -> ProcessRole:
    if given is not None:
        raise ValueError(
            f"{worker.count} workers cannot share {type(given).__name__}: pass a URL, such as 'sqlite:///game.db', so "
            "that each worker opens files of its own, or start one worker"
        )
    # An earlier process of this worker may still be finishing its turns and `on_stop` hooks.
    patience = _PATIENCE + 2 * settings.shutdown_timeout
    store, files = open_share(settings.store, worker.number, worker.count, patience=patience)
    owners = Workers(worker.number, worker.count, files)
    return ProcessRole(store, owners, Folder(worker.number, worker.folder), worker.is_first)
