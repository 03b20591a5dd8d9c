// @ts-check
/** Files that are attached to messages: chosen, dropped or pasted, uploaded at once, and sent with the next message. */

import { clone, find, findInput, notify, randomId, write } from "../room.js";

/**
 * @typedef {import("/plait/client.js").ThreadFiles} ThreadFiles
 * @typedef {import("/plait/client.js").FileInfo} FileInfo
 * @typedef {{element: HTMLElement, stop: AbortController, done: Promise<FileInfo | undefined>}} Waiting
 */

const MOST = 10;
// The maximum pixels of a picture in a message.
const WIDEST = 352;
const HIGHEST = 288;
const SHOWN = /^image\/(png|jpeg|gif|webp|svg\+xml|avif)$/;

/** The files that are sent with the next message. */
export class Attachments {
  #files;
  /** @type {Waiting[]} */
  #waiting = [];

  /** @param {ThreadFiles} files */
  constructor(files) {
    this.#files = files;
    const chosen = findInput("#files");
    find("#attach").addEventListener("click", () => chosen.click());
    chosen.addEventListener("change", () => {
      this.#add(chosen.files ?? []);
      chosen.value = "";
    });
    find("#message").addEventListener("paste", ({ clipboardData }) => this.#add(clipboardData?.files ?? []));
    this.#openDropZone();
  }

  /** Whether there are files. */
  get has() {
    return this.#waiting.length > 0;
  }

  /** Return the attachments of a message, once all files are uploaded; failed files are left out. */
  async take() {
    const taken = this.#waiting;
    this.#waiting = [];
    const files = await Promise.all(taken.map(({ done }) => done));
    for (const { element } of taken) element.remove();
    return files.flatMap((file) => (file ? [describe(file)] : []));
  }

  /** @param {Iterable<File>} files */
  #add(files) {
    for (const file of files) {
      if (this.#waiting.length < MOST) this.#upload(file);
      else notify(`A message has at most ${MOST} files.`, { refused: true });
    }
    find("#message").focus();
  }

  /** @param {File} file */
  #upload(file) {
    const [element, stop] = [clone("#attachment"), new AbortController()];
    const bar = /** @type {HTMLProgressElement} */ (find("progress", element));
    write(find(".file-name", element), file.name);
    find("#attachments").append(element);
    const onProgress = (/** @type {number} */ sent, /** @type {number} */ total) => (bar.value = total && sent / total);
    const path = `attachments/${randomId()}/${file.name.replaceAll(/[\\/\p{Cc}]/gu, "-").slice(-100) || "file"}`;
    const done = this.#files.upload(path, file, { onProgress, signal: stop.signal }).then(
      (stored) => {
        bar.hidden = true;
        return stored;
      },
      (error) => {
        this.#drop(waiting);
        if (!stop.signal.aborted) notify(`${file.name} was not uploaded: ${error.message}.`, { refused: true });
        return undefined;
      },
    );
    const waiting = { element, stop, done };
    this.#waiting.push(waiting);
    find("button", element).addEventListener("click", async () => {
      this.#drop(waiting);
      stop.abort();
      if (await done) await this.#files.remove(path);
    });
  }

  /** @param {Waiting} waiting */
  #drop(waiting) {
    this.#waiting = this.#waiting.filter((each) => each !== waiting);
    waiting.element.remove();
  }

  #openDropZone() {
    const zone = find("#drop");
    const hasFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") ?? false;
    addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      zone.hidden = false;
    });
    addEventListener("dragleave", ({ relatedTarget }) => relatedTarget === null && (zone.hidden = true));
    addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      zone.hidden = true;
      this.#add(event.dataTransfer?.files ?? []);
    });
  }
}

/** Return the attachment of a message for a file. @param {FileInfo} file */
function describe({ path, name, mime, size, width, height }) {
  return { path, name, mime, size, ...(width && height && { width, height }) };
}

/**
 * Return the elements for the attachments of a message: pictures and links. Clients may send any attachments.
 * @param {readonly {readonly [key: string]: unknown}[]} attachments
 * @param {{url(path: string): string}} files
 */
export function makeAttachments(attachments, files) {
  return attachments.flatMap(({ path, name, mime, width, height }) => {
    const parts = String(path).split("/");
    if (parts[0] !== "attachments" || parts.includes("..")) return [];
    const [item, link] = [document.createElement("li"), document.createElement("a")];
    link.href = files.url(parts.join("/"));
    link.download = String(name ?? parts.at(-1));
    link.append(SHOWN.test(String(mime)) ? makePicture(link, Number(width), Number(height)) : link.download);
    item.append(link);
    return [item];
  });
}

/** @param {HTMLAnchorElement} link @param {number} width @param {number} height */
function makePicture({ href, download }, width, height) {
  const picture = new Image();
  // The picture has its place before it is loaded.
  const scale = Math.min(1, WIDEST / width, HIGHEST / height);
  if (width > 0 && height > 0) [picture.width, picture.height] = [width * scale, height * scale];
  [picture.loading, picture.alt, picture.src] = ["lazy", download, href];
  return picture;
}
