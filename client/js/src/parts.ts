/** The parts of a client that only some pages need: each is an option, so that a page without it does not load it. */

import type { Document, Json } from "./json.js";
import type { Pending, ShownChange } from "./pending.js";
import type { Op } from "./protocol.js";
import type { Region } from "./text.js";

/** A part of a text that is replaced; positions are those of JavaScript strings, UTF-16 units. */
export interface TextEdit {
  readonly at: number;
  readonly remove: number;
  readonly insert: string;
}

/** A change of a text, by this client or by others. */
export interface TextChange {
  /** The text as it is shown; undefined where there is none. */
  readonly text: string | undefined;
  /**
   * The edits from the text of the last call to this one: in order, not overlapping, and all counted on that text.
   * Empty if there was or is no text.
   */
  readonly edits: readonly TextEdit[];
}

/**
 * Typing in texts, and listening to changes in them. A client without this part shows others' typing. It cannot rebase
 * an own splice over one in the same text, such as a splice that a page with a storage has left; the server then does
 * so.
 */
export interface TextPart {
  /** Returns a function that finds one region, around all differences, or by letters the smallest change. */
  newTexts(options?: { byLetters?: boolean }): CompareTexts;
  /** Moves another splice of the same text before `mine`: each becomes its form after the other. */
  pass(mine: Splicing, other: Splicing): void;
  /** Returns the places of the texts that pushes splice. */
  textsOf(pushes: readonly Pending[]): Iterable<string>;
  /** Returns operations on a document; an operation that replaces a value becomes the result of `replace` for it. */
  inTexts(
    ops: readonly Op[],
    document: Document,
    replace: (old: Document, next: Json, path: string) => readonly Op[],
  ): Op[];
  newInsertion(): Insertion;
  newMethods(edits: Editing, watchers: TextWatchers, compare: CompareTexts): TextMethods;
  newWatchers(compare: CompareTexts): TextWatchers;
}

/** The methods of a client that the option `text` brings. */
export interface TextMethods {
  /**
   * Removes `remove` characters of the string at a JSON pointer, from a position on, and inserts a text there. Others'
   * typing in it at the same time stays. Positions are those of JavaScript strings, UTF-16 units, like
   * `selectionStart`; one in the middle of a surrogate pair, or past the end, is refused with `bad_state`. Several
   * edits are one change; they are in order, and all counted on the text before them.
   */
  splice(pointer: string, at: number, remove?: number, insert?: string): Promise<number>;
  splice(pointer: string, edits: readonly TextEdit[]): Promise<number>;
  /** Appends to the string at a JSON pointer; only the appended text is sent. */
  append(pointer: string, text: string): Promise<number>;
  /**
   * Tells whether an insertion at a position of the string at a JSON pointer continues the last insertion of this
   * client: then it stays before others' insertions there. This is for editors that hold back others' typing.
   */
  goesOn(pointer: string, at: number): boolean;
  /** Returns edits that lead from one text to another, as few as the options find. This is for editors. */
  editsBetween(before: string, after: string): TextEdit[];
  /**
   * Calls `fn` with each change of the shown string at a JSON pointer, even by this client: with the text, and the
   * edits that led there. This is for editors; `bindText` uses it for the elements of a page.
   */
  onText(pointer: string, fn: (change: TextChange) => void): () => void;
}

/** The interface of a client for the methods of a part. */
export interface Editing {
  readonly shown: Document;
  /** Whether the shown state is not the session's. */
  readonly isEarly: boolean;
  readonly insertion: Insertion | undefined;
  /** Pushes the operations that `make` returns for the shown state. */
  make(make: (shown: Document) => readonly Op[]): Promise<number>;
}

/** The effect of a splice on its text, and whether it continues the same client's insertion. */
export interface Splicing {
  regions: readonly Region[];
  isOwn: boolean;
}

/** Returns the change that turns `old` into `next`. */
export type CompareTexts = (old: string, next: string) => Region[];

/** The last contiguous insertion of this client, in the shown state. */
export interface Insertion {
  /** Tells whether an insertion at a place is right after it, or inside it. */
  goesOn(path: string, at: number): boolean;
  /** Notes an operation of this client; returns it, with `own` if it continues the insertion. */
  add(op: Op): Op;
  /** Moves it after changes of others to the shown state; without `ops`, the new place is not known. */
  follow(ops: readonly Op[], before: Document, after: Document): void;
}

/** The functions that are called with changes of texts. */
export interface TextWatchers {
  /** Calls `fn` with each change of the text at a pointer; returns the function that ends this. */
  watch(pointer: string, shown: Document, fn: (change: TextChange) => void): () => void;
  /** Adds a change of the session's shown state. */
  add(change: ShownChange): void;
  /** Reports all changes, up to the shown state; without the session's changes if that is not the session's. */
  tell(shown: Document, isOfSession: boolean): void;
}

/**
 * An edit at `index` of the list as the edits before it have left it; `old` and `next` are the element's indices in the
 * two lists, or -1. "change" is for an element that differs inside; "in" adds, unchanged, the element that the "out"
 * right before it has removed.
 */
export interface Edit {
  kind: "change" | "replace" | "remove" | "add" | "out" | "in";
  index: number;
  old: number;
  next: number;
}

/**
 * Returns the edits between two lists in order; undefined if the list must be replaced whole. `key` is the member that
 * holds the ids of the elements, if one is declared.
 */
export type CompareLists = (old: readonly Json[], next: readonly Json[], key?: string) => Edit[] | undefined;

/**
 * The close comparing of whole values: of texts by words or letters, and of lists of elements without ids, such as rows
 * and boards. Each function that it returns has one budget for two states.
 */
export interface ComparePart {
  newLists(): CompareLists;
  newTexts(options?: { byLetters?: boolean }): CompareTexts;
}

/** Returns a function that compares texts; undefined if the client has no part for them. */
export function textComparison({ text, compare }: Parts, options?: { byLetters?: boolean }): CompareTexts | undefined {
  return text && (compare ?? text).newTexts(options);
}

/** Undo and redo of this client's own changes. */
export interface UndoPart {
  /** The clock counts milliseconds. */
  newHistory(now: () => number, parts: Parts): History;
  newMethods(edits: Editing, history: History): UndoMethods;
}

/** The methods of a client that the option `undo` brings. */
export interface UndoMethods {
  /**
   * Takes back the last own change in this page, a burst of typing as one; with a JSON pointer, the last one at that
   * place or in it. Others' later changes stay; a change whose place they have changed is not taken back. Resolves as
   * `set` does; returns undefined if there is nothing to take back.
   */
  undo(pointer?: string): Promise<number> | undefined;
  /** Does the undone change again, while this client has made no other change. */
  redo(pointer?: string): Promise<number> | undefined;
  canUndo(pointer?: string): boolean;
  canRedo(pointer?: string): boolean;
}

/** The changes of this client that can be undone, and those that were undone. */
export interface History {
  /** Follows a change of the shown state. */
  handle(change: ShownChange): void;
  /** Follows the server's answer to a push. */
  settle(push: Pending, isRefused: boolean): void;
  /** Makes one entry of all changes until it was resumed as often; typing goes on with the burst before. */
  pause(): void;
  resume(): void;
  /** Tells whether there is something to undo or redo at a place or in it. */
  can(what: "undo" | "redo", place: readonly string[], document: Document): boolean;
  /**
   * Undoes or redoes the last of the changes at a place or in it, on the shown state; `push` must push the operations
   * at once. Returns the result of `push`; undefined if there is nothing to do.
   */
  run<Answer>(
    what: "undo" | "redo",
    place: readonly string[],
    document: Document,
    push: (ops: readonly Op[]) => Answer,
  ): Answer | undefined;
}

/** The parts that a session needs. */
export interface Parts {
  readonly text?: TextPart | undefined;
  readonly compare?: ComparePart | undefined;
  /** Whether the state is followed, unless it is false. */
  readonly state?: boolean | undefined;
}

/** A file of a thread, also in the events `file_created` and `file_updated`. Times are in microseconds. */
export interface FileInfo {
  readonly path: string;
  readonly name: string;
  readonly size: number;
  readonly mime: string;
  readonly created_at: number;
  readonly updated_at: number;
  /** The size of an image in pixels; null if it is not known. */
  readonly width: number | null;
  readonly height: number | null;
  readonly metadata: { readonly [key: string]: unknown };
  /** Changes with the content. */
  readonly etag: string;
  readonly is_directory: boolean;
}

export interface UploadOptions {
  /**
   * Called with the number of bytes sent so far, and their total. Outside of browsers it is called once, at the end.
   */
  onProgress?: ((sent: number, total: number) => void) | undefined;
  signal?: AbortSignal | undefined;
  /** The MIME type. The default is the type of the blob, or of the path's extension. */
  type?: string | undefined;
}

/** The files that a thread keeps: over HTTP, beside the socket. */
export interface ThreadFiles {
  /**
   * Returns the address of a file, for `<img>` and links. A page shows the server its cookies there, and no token.
   * Throws a PlaitError for a path with `..`.
   */
  url(path: string): string;
  /**
   * Stores a file, in place of an earlier one. Rejects with a PlaitError, even if the connection is lost: the file can
   * be sent again; and with the reason of `signal`, which leaves the earlier file.
   */
  upload(path: string, data: Blob | ArrayBuffer | ArrayBufferView | string, options?: UploadOptions): Promise<FileInfo>;
  /** Removes a file; resolves to whether there was one. Rejects with a PlaitError. */
  remove(path: string): Promise<boolean>;
}

/** The member that the option `files` gives to a client. */
export interface HasFiles {
  /** The files that the thread keeps; undefined without the option. */
  readonly files: ThreadFiles;
}

/** Gives a client files. */
export interface FilesPart {
  /** Gives a client with these options its `files`. */
  put(client: object, carrier: object, options: object): void;
}

/** Shows what calls will do. */
export interface OptimisticPart {
  /** Gives a client, which may have joined already, optimistic calls. `Base` is the class of a state with edits. */
  put(client: object, link: object, options: object, edits: object, Base: object): void;
}

/** Keeps a client's confirmed state for the next page. */
export interface CachePart {
  put(client: object, link: unknown, options: object): void;
}

/** The member that the option `cache` gives to a client. */
export interface HasCache {
  /**
   * When the state was kept last, as `Date.now()`: before the thread is joined, by an earlier page. Undefined if none is
   * kept, and without the option.
   */
  readonly savedAt: number | undefined;
}
