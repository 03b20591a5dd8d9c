/** The error that this client throws, and the close codes that end a client with one. */

export interface PlaitErrorOptions {
  path?: string | undefined;
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
    this.path = path;
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

const FINAL: Record<number, readonly [code: string, message: string]> = {
  1008: ["policy_violation", "The server refuses this client"],
  4400: ["bad_frame", "The server could not read a frame of this client"],
  4401: ["unauthenticated", "Authentication required: the token is missing, invalid or expired"],
  4403: ["forbidden", "Access to this thread is not allowed"],
  4404: ["not_found", "There is no such thread"],
  4408: ["replaced", "Another socket joined with the same client id"],
  4409: ["outdated", "The schema of the state has changed: reload the app"],
  4410: ["destroyed", "The thread was destroyed"],
};

/** Tells whether a client must not reconnect after it was closed with `code`. */
export function isFinal(code: number): boolean {
  return code === POLICY_VIOLATION || (code >= 4400 && code <= 4499);
}

/** Returns the error of a client that was closed with a final code; undefined where it reconnects. */
export function finalError(code: number, reason: string | undefined): PlaitError | undefined {
  if (!isFinal(code)) return undefined;
  const [name, message] = FINAL[code] ?? ["closed", `The server closed the connection for good (${code})`];
  return new PlaitError(name, reason || message, { closeCode: code });
}
