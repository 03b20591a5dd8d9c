/** The error that this client throws, and the close codes that end a client with one. */

export interface PlaitErrorOptions {
  path?: string | null | undefined;
  closeCode?: number | undefined;
  cause?: unknown;
}

/** The codes of the server's errors. */
type ServerCode =
  | "bad_frame"
  | "bad_request"
  | "busy"
  | "call_failed"
  | "conflict"
  | "corrupt_thread"
  | "destroyed"
  | "error"
  | "fenced"
  | "forbidden"
  | "gap"
  | "indeterminate"
  | "internal"
  | "invalid_arguments"
  | "invalid_state"
  | "method_not_found"
  | "migration_failed"
  | "newer_state"
  | "not_found"
  | "outdated"
  | "policy_violation"
  | "rate_limited"
  | "readonly"
  | "rejected"
  | "replaced"
  | "rolled_back"
  | "sql_error"
  | "store_error"
  | "terminated"
  | "too_large"
  | "turn_timeout"
  | "unanswerable"
  | "unauthenticated"
  | "unavailable";

/**
 * The kind of an error: a code of the server's, or `disconnected` (the connection was lost), `closed`, `cancelled`,
 * `bad_state`, `no_token`, `no_host`, `bad_url`, `no_websocket`. A newer server may have others.
 */
export type ErrorCode =
  | ServerCode
  | "bad_state"
  | "bad_url"
  | "cancelled"
  | "closed"
  | "disconnected"
  | "no_host"
  | "no_token"
  | "no_websocket";

/** The one error of this client, told apart by `code`. */
export class PlaitError extends Error {
  readonly code: ErrorCode;
  /** JSON pointer or JSON path to the invalid part, if there is one. */
  readonly path: string | undefined;
  /** The WebSocket close code, if the error comes from one. */
  readonly closeCode: number | undefined;

  constructor(code: ErrorCode, message: string, options: PlaitErrorOptions = {}) {
    super(message, options);
    this.name = "PlaitError";
    this.code = code;
    this.path = options.path ?? undefined;
    this.closeCode = options.closeCode;
  }
}

/** Returns the error of a frame that refuses another. */
export function errorOf(frame: { code: string; message: string; path?: string | null }): PlaitError {
  return new PlaitError(frame.code as ErrorCode, frame.message, frame);
}

/** Throws an error as an uncaught one, after the running code. */
export function raise(error: unknown): void {
  setTimeout(() => {
    throw error;
  });
}

// Close codes

export const GOING_AWAY = 1001;
export const ABNORMAL = 1006;
export const POLICY_VIOLATION = 1008;
export const MESSAGE_TOO_BIG = 1009;
export const UNAUTHENTICATED = 4401;

/** The error codes of a client that was closed with a final code; the reason from the server is the message. */
const FINAL: Record<number, ErrorCode> = {
  1008: "policy_violation",
  4400: "bad_frame",
  4401: "unauthenticated",
  4403: "forbidden",
  4404: "not_found",
  4408: "replaced",
  4409: "outdated",
  4410: "destroyed",
};

/** Tells whether a client must not reconnect after it was closed with `code`. */
export function isFinal(code: number): boolean {
  return code === POLICY_VIOLATION || (code >= 4400 && code <= 4499);
}

/** Returns the error of a client that was closed with a final code; undefined if it reconnects. */
export function finalError(code: number, reason: string | undefined): PlaitError | undefined {
  if (!isFinal(code)) return undefined;
  const message = reason || `the connection was closed (${code})`;
  return new PlaitError(FINAL[code] ?? "closed", message, { closeCode: code });
}
