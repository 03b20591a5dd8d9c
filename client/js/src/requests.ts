/** Requests over HTTP, beside the socket: with the token of a client, and the errors of the server. */

import { PlaitError } from "./errors.js";
import type { ErrorCode } from "./errors.js";

/** A text that tells who a client is, or a function that returns it. */
export type Token = string | (() => string | undefined | Promise<string | undefined>) | undefined;

/** Statuses from 400 to 499 that another attempt may not get. */
const PASSING = new Set([408, 425, 429]);

/** An answer of the server in place of the requested one. */
export class RefusedRequest extends PlaitError {
  constructor(
    code: ErrorCode,
    message: string,
    path: string | undefined,
    readonly isFinal: boolean,
  ) {
    super(code, message, { path });
  }
}

/** Returns the headers that show a token. Rejects with a PlaitError if the app's function for it fails. */
export async function authorize(token: Token): Promise<Record<string, string>> {
  try {
    const shown = await (typeof token === "function" ? token() : token);
    return shown === undefined ? {} : { authorization: `Bearer ${shown}` };
  } catch (cause) {
    throw new PlaitError("no_token", `no token could be fetched: ${String(cause)}`, { cause });
  }
}

/** Returns the address for HTTP of what is below a socket's address, with more parameters. */
export function httpUrl(socket: string, path = "", parameters: Record<string, string> = {}): string {
  const [place = "", query = ""] = socket.replace(/^ws/, "http").split("?");
  const added = Object.entries(parameters).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  const all = [query, ...added].filter((part) => part !== "").join("&");
  return (path === "" ? place : place.replace(/\/*$/, `/${path}`)) + (all && `?${all}`);
}

/** Returns the answer to a request. Rejects with a PlaitError, and with the reason of its signal. */
export async function request(url: string, options: RequestInit): Promise<Response> {
  let response;
  try {
    response = await fetch(url, options);
  } catch (cause) {
    options.signal?.throwIfAborted();
    throw unreachable(cause);
  }
  if (!response.ok) throw errorOf(response.status, await response.text());
  return response;
}

export function unreachable(cause?: unknown): PlaitError {
  return new PlaitError("disconnected", "the server cannot be reached", { cause });
}

/** Returns the error of an answer; an answer that is not the server's own has the status as its message. */
export function errorOf(status: number, body: string): RefusedRequest {
  const isLasting = status >= 400 && status <= 499 && !PASSING.has(status);
  try {
    const { error } = JSON.parse(body) as { error: { code: ErrorCode; message: string; path?: string } };
    return new RefusedRequest(error.code, error.message, error.path, isLasting);
  } catch {
    return new RefusedRequest("error", `the server answered with ${status}`, undefined, isLasting);
  }
}
