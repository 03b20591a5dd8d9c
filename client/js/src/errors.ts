/** The error that this client throws, and the close codes that end a client with one. */

export interface PlaitErrorOptions {
  path?: string | null | undefined;
  closeCode?: number | undefined;
  cause?: unknown;
}

/**
 * The one error of this client, told apart by `code`: one of the server's (`rejected`, `conflict`, `invalid_arguments`,
 * …), or `disconnected` (the connection was lost), `closed`, `cancelled`, `bad_state`, `too_large`, `no_token`,
 * `no_host`, `bad_url`, `no_websocket`.
 */
export class PlaitError extends Error {
  readonly code: string;
  /** JSON pointer or JSON path to the invalid part, where there is one. */
  readonly path: string | undefined;
  /** The WebSocket close code, where the error comes from one. */
  readonly closeCode: number | undefined;

  constructor(code: string, message: string, { path, closeCode, cause }: PlaitErrorOptions = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = "PlaitError";
    this.code = code;
    this.path = path ?? undefined;
    this.closeCode = closeCode;
  }
}

/** Throws an error as an uncaught one, after the code that runs. */
export function raise(error: unknown): void {
  queueMicrotask(() => {
    throw error;
  });
}

// Close codes

export const GOING_AWAY = 1001;
export const ABNORMAL = 1006;
export const POLICY_VIOLATION = 1008;
export const MESSAGE_TOO_BIG = 1009;
export const UNAUTHENTICATED = 4401;

/** The codes of the errors of a client that was closed with a final code; the reason that the server gives is the message. */
const FINAL: Record<number, string> = {
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

/** Returns the error of a client that was closed with a final code; undefined where it reconnects. */
export function finalError(code: number, reason: string | undefined): PlaitError | undefined {
  if (!isFinal(code)) return undefined;
  const message = reason || `closed by the server (${code})`;
  return new PlaitError(FINAL[code] ?? "closed", message, { closeCode: code });
}
