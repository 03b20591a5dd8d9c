/** The files that a thread keeps, as an option of a client: over HTTP, beside its socket. */

import { PlaitError } from "./errors.js";
import { socketUrl } from "./options.js";
import type { ThreadOptions } from "./options.js";
import type { FileInfo, FilesPart, ThreadFiles, UploadOptions } from "./parts.js";
import { RefusedRequest, authorize, errorOf, httpUrl, request, unreachable } from "./requests.js";

export const files: FilesPart = {
  put(client, _, options) {
    Object.defineProperty(client, "files", { value: new Files(options as ThreadOptions<unknown>), configurable: true });
  },
};

class Files implements ThreadFiles {
  readonly #options: ThreadOptions<unknown>;

  constructor(options: ThreadOptions<unknown>) {
    this.#options = options;
  }

  url(path: string): string {
    const parts = path.split("/").filter((part) => part !== "" && part !== ".");
    // Such a path would lead to another address.
    if (parts.includes("..")) throw new PlaitError("bad_url", `the path ${JSON.stringify(path)} has the part ".."`);
    return httpUrl(socketUrl(this.#options), ["files", ...parts.map(encodeURIComponent)].join("/"));
  }

  async upload(
    path: string,
    data: Blob | ArrayBuffer | ArrayBufferView | string,
    options: UploadOptions = {},
  ): Promise<FileInfo> {
    const { onProgress, signal } = options;
    const body = data instanceof Blob ? data : new Blob([data as BlobPart]);
    const type = options.type ?? (data instanceof Blob ? data.type : "");
    const headers = { ...(await authorize(this.#options.token)), ...(type && { "content-type": type }) };
    signal?.throwIfAborted();
    if (onProgress && globalThis.XMLHttpRequest) return send(this.url(path), body, headers, onProgress, signal);
    // A blob's own type would be sent without the header.
    const content = body.slice(0, body.size, type);
    const response = await request(this.url(path), {
      method: "PUT",
      body: content,
      headers,
      ...(signal && { signal }),
    });
    onProgress?.(body.size, body.size);
    return (await response.json()) as FileInfo;
  }

  async remove(path: string): Promise<boolean> {
    try {
      await request(this.url(path), { method: "DELETE", headers: await authorize(this.#options.token) });
      return true;
    } catch (error) {
      if (error instanceof RefusedRequest && error.code === "not_found") return false;
      throw error;
    }
  }
}

/** Sends a file with XMLHttpRequest, because `fetch` does not report its progress. */
function send(
  url: string,
  body: Blob,
  headers: Record<string, string>,
  onProgress: (sent: number, total: number) => void,
  signal: AbortSignal | undefined,
): Promise<FileInfo> {
  return new Promise((resolve, reject) => {
    const sent = new XMLHttpRequest();
    const abort = () => sent.abort();
    sent.upload.onprogress = ({ loaded }) => onProgress(Math.min(loaded, body.size), body.size);
    sent.onload = () => {
      if (sent.status >= 200 && sent.status <= 299) resolve(JSON.parse(sent.responseText) as FileInfo);
      else reject(errorOf(sent.status, sent.responseText));
    };
    sent.onerror = () => reject(unreachable());
    sent.onabort = () => reject(signal?.reason as Error);
    sent.onloadend = () => signal?.removeEventListener("abort", abort);
    signal?.addEventListener("abort", abort);
    sent.open("PUT", url);
    for (const [name, value] of Object.entries(headers)) sent.setRequestHeader(name, value);
    sent.send(body);
  });
}
