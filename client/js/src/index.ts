/** The public names of `plait-client`. */

export { bindText } from "./bind-text.js";
export { cache } from "./cache-part.js";
export type { CallOptions, Optimism, RpcStream } from "./calls.js";
export { channels } from "./channels.js";
export type { ChannelsOptions } from "./channels.js";
export { ThreadClient } from "./client.js";
export type { Unsubscribe } from "./client.js";
export { compare } from "./compare.js";
export { PlaitError } from "./errors.js";
export type { ErrorCode } from "./errors.js";
export type { TextElement } from "./fields.js";
export { files } from "./files-part.js";
export type { DeepReadonly, Json } from "./json.js";
export { keepIn } from "./keep.js";
// With a star, as `plait types` adds to it.
export type * from "./kinds.js";
export type { Status } from "./link.js";
export { listThreads, watchThreads } from "./listing.js";
export type { ListOptions, ListedThread, PageOptions, ThreadList, ThreadPage } from "./listing.js";
export { optimistic } from "./optimistic.js";
export type { AnyEvents, Refusal, ThreadChange } from "./listeners.js";
export type { Keeper, ThreadOptions } from "./options.js";
export type {
  CachePart,
  ComparePart,
  FileInfo,
  FilesPart,
  OptimisticPart,
  TextChange,
  TextEdit,
  TextPart,
  ThreadFiles,
  UndoPart,
  UploadOptions,
} from "./parts.js";
export type { PresenceRecord } from "./presence.js";
export type { Op } from "./protocol.js";
export { queries } from "./queries-part.js";
export type { QueriesPart } from "./queries-part.js";
export type { AnyRpcs, RpcFace } from "./rpc.js";
export type { Interruption } from "./runs.js";
export type { WebSocketClass, WebSocketLike } from "./socket.js";
export type { StorageLike } from "./storage.js";
export { messages } from "./messages-part.js";
export type { MessagesPart } from "./messages-part.js";
export type { MessageStatus, ThreadMessage } from "./conversation.js";
export type { MessageRefusal, ThreadMessages } from "./thread-messages.js";
export { tasks } from "./tasks-part.js";
export type { TasksPart } from "./tasks-part.js";
export type { PendingApproval, TaskRun } from "./protocol.js";
export type { Decision, ThreadTasks } from "./thread-tasks.js";
export { text } from "./text-part.js";
export { undo } from "./undo.js";
