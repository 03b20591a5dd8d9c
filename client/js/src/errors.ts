/** The one error that this client raises, and what is done with one that nobody waits for. */

export interface PlaitErrorOptions {
  path?: string | undefined;
  closeCode?: number | undefined;
  cause?: unknown;
}

/**
 * What went wrong, told apart by `code`: one of the server's (`rejected`, `conflict`, `invalid_arguments`, …), or
 * `disconnected` (the connection is lost), `closed`, `cancelled`, `bad_state`, `no_token`, `no_host`, `bad_url`,
 * `no_websocket`.
 */
export class PlaitError extends Error {
  readonly code: string;
  /** JSON pointer or JSON path to what was wrong, where there is one. */
  readonly path: string | undefined;
  /** The close code that stopped the client, where one did. */
  readonly closeCode: number | undefined;

  constructor(code: string, message: string, { path, closeCode, cause }: PlaitErrorOptions = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = "PlaitError";
    this.code = code;
    this.path = path;
    this.closeCode = closeCode;
  }
}

/** Lets an error be heard of as uncaught. */
export function raise(error: unknown): void {
  queueMicrotask(() => {
    throw error;
  });
}
