/** React hooks for a ThreadClient; rendering on a server opens no socket. */

export type { ThreadHandlers } from "./hooks.js";
export type { Person } from "./people.js";
export type { QueryState } from "./queries.js";
export { useApprovals, useMessages, useTask, useText, useThreads } from "./react-parts.js";
export type { BoundText, MessagesState, UseThreadsOptions } from "./react-parts.js";
export { useOther, useOthers, usePresence, useSelf } from "./react-presence.js";
export { Room, useRoom } from "./react-room.js";
export type { RoomProps } from "./react-room.js";
export { useRpc, useStream } from "./react-rpc.js";
export type { RpcOptions, RpcState, StreamState } from "./react-rpc.js";
export { useCanRedo, useCanUndo, usePending, useRedo, useStatus, useThreadState, useUndo } from "./react-state.js";
export { useThreadStatus } from "./react-state.js";
export { useErrorListener, useThread, useThreadEvent } from "./react-thread.js";
export type { UseThreadOptions } from "./react-thread.js";
export { useQuery } from "./use-query.js";
export type { QueryOptions } from "./use-query.js";
