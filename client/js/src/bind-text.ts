/** Shows a text of a thread in an element of the page, and sends what is typed there. */

import type { ThreadClient } from "./client.js";
import { fieldOf, positionIn } from "./fields.js";
import type { Field, Selection, TextElement } from "./fields.js";
import { parse, textAt } from "./patch.js";
import type { TextChange, TextEdit } from "./parts.js";
import type { Document } from "./json.js";
import { compose, spliced, transform } from "./text.js";
import type { Region } from "./text.js";
import { endOf, follow, toEdits, toRegions, typed } from "./typing.js";

/**
 * Binds a `<textarea>`, an `<input>` or an element with `contenteditable="plaintext-only"` to the string at a JSON
 * pointer. Typed text is sent at once; the text that others type is shown without moving the caret from its place in
 * the text, and after a composition of an input method. Undo and redo are those of the client for this text. While
 * there is no text, or it may not be changed, the element is readonly.
 */
export function bindText(
  element: TextElement,
  client: ThreadClient<any, any, any>,
  pointer: string,
): { close: () => void } {
  return new Binding(element, client, pointer);
}

class Binding {
  readonly #client: ThreadClient;
  readonly #pointer: string;
  readonly #parts: readonly string[];
  readonly #field: Field;
  // Whether the element itself makes a text of lines.
  readonly #isInput: boolean;
  readonly #closing = new AbortController();
  // The text that the element shows.
  #text = "";
  // The changes of others since then, while an input method composes.
  #held: readonly Region[] = [];
  #isComposing = false;
  // The edit under way: one that the element shows, or one that takes its caret along.
  #doing: "type" | "jump" | undefined;

  constructor(element: TextElement, client: ThreadClient, pointer: string) {
    this.#client = client;
    this.#pointer = pointer;
    this.#parts = parse(pointer);
    this.#field = fieldOf(element);
    this.#isInput = element instanceof HTMLTextAreaElement || element instanceof HTMLInputElement;
    const { signal } = this.#closing;
    const listen = <Name extends keyof HTMLElementEventMap>(
      name: Name,
      fn: (event: HTMLElementEventMap[Name]) => void,
    ) => element.addEventListener(name, fn as (event: Event) => void, { signal });
    listen("input", () => this.#read());
    listen("compositionstart", () => this.#beginComposition());
    listen("compositionend", () => this.#endComposition());
    listen("keydown", (event) => this.#handleKey(event));
    listen("beforeinput", (event) => this.#handleInput(event));
    const unsubscribes = [
      client.onText(pointer, (change) => this.#handleText(change)),
      client.subscribe(() => this.#allow()),
    ];
    signal.addEventListener("abort", () => unsubscribes.forEach((unsubscribe) => unsubscribe()));
    this.#show();
    this.#allow();
  }

  /** Ends the binding; the element keeps its text. */
  close(): void {
    this.#closing.abort();
    if (this.#isComposing) this.#client.resumeHistory();
    this.#isComposing = false;
    this.#field.release();
  }

  get #shared(): string | undefined {
    return textAt(this.#client.state as Document, this.#parts);
  }

  #allow(): void {
    const { readonly, status } = this.#client;
    this.#field.allow(!readonly && status !== "closed" && this.#shared !== undefined);
  }

  // Typing

  /** Sends the differences in the element. */
  #read(): void {
    const { value, selection } = this.#field;
    const edits = typed(this.#field.show(this.#text), value, selection?.[1], this.#client.editsBetween).map(
      ({ at, remove, insert }) => {
        const start = positionIn(this.#text, this.#field, at);
        return { at: start, remove: positionIn(this.#text, this.#field, at + remove) - start, insert };
      },
    );
    this.#edit(edits);
  }

  /** Sends edits of the text that the element showed. */
  #edit(edits: readonly TextEdit[]): void {
    const shared = this.#shared;
    if (edits.length > 0 && shared !== undefined) {
      const mine = toRegions(this.#text, edits);
      const yields = !this.#goesOn(toEdits(shared, transform(mine, this.#held, false)));
      const sent = toEdits(shared, transform(mine, this.#held, yields));
      this.#held = transform(this.#held, mine, !yields);
      this.#text = spliced(this.#text, mine);
      this.#do("type", () => this.#client.splice(this.#pointer, sent));
    }
    this.#show();
  }

  /** Tells whether edits continue the last typed text, so that others' text at that place comes after them. */
  #goesOn(edits: readonly TextEdit[]): boolean {
    const first = edits.find(({ insert }) => insert !== "");
    return first !== undefined && this.#client.goesOn(this.#pointer, first.at);
  }

  #do(what: "type" | "jump", act: () => unknown): void {
    this.#doing = what;
    try {
      act();
    } finally {
      this.#doing = undefined;
    }
  }

  // Showing

  #handleText({ text, edits }: TextChange): void {
    if (this.#doing === "type") return;
    const last = spliced(this.#text, this.#held);
    if (text !== undefined && fits(last, edits)) this.#held = compose(this.#held, toRegions(last, edits));
    this.#show(this.#doing === "jump");
    this.#allow();
  }

  /** Shows the current text; the caret stays in its place, or goes to the place of the change. */
  #show(goesThere = false): void {
    if (this.#isComposing) return;
    const text = this.#shared ?? "";
    const field = this.#field;
    if (spliced(this.#text, this.#held) !== text)
      this.#held = toRegions(this.#text, this.#client.editsBetween(this.#text, text));
    const edits = this.#shownEdits(toEdits(this.#text, this.#held));
    const next = field.show(text);
    this.#text = text;
    this.#held = [];
    if (edits.length === 0 && field.value === next) return;
    const there = field.selection;
    const moved: Selection | undefined = there && [
      // Text that is inserted at either end of a selection is not selected.
      follow(there[0], edits, there[0] < there[1]),
      follow(there[1], edits),
    ];
    const end = endOf(edits);
    field.write(edits, next, goesThere && there && edits.length > 0 ? [end, end] : moved);
  }

  /** Returns edits of the text as edits of the shown text. */
  #shownEdits(edits: readonly TextEdit[]): TextEdit[] {
    const show = (text: string) => this.#field.show(text);
    if (show(this.#text).length === this.#text.length && edits.every(({ insert }) => show(insert) === insert))
      return [...edits];
    const [before, after] = [show(this.#text), show(this.#shared ?? "")];
    return this.#client.editsBetween(before, after);
  }

  // Keys and input methods

  #beginComposition(): void {
    if (!this.#isComposing) this.#client.pauseHistory();
    this.#isComposing = true;
  }

  #endComposition(): void {
    const wasComposing = this.#isComposing;
    this.#isComposing = false;
    this.#read();
    if (wasComposing) this.#client.resumeHistory();
  }

  #handleKey(event: KeyboardEvent): void {
    if (event.defaultPrevented || event.isComposing || event.altKey || !(event.ctrlKey || event.metaKey)) return;
    // On layouts without Latin letters, the key at the same place.
    const isLatin = event.key.charCodeAt(0) < 0x80;
    const key = (isLatin ? event.key : event.code.replace("Key", "")).toLowerCase();
    if (key === "z") this.#run(event.shiftKey ? "redo" : "undo", event);
    else if (key === "y" && event.ctrlKey && !event.shiftKey) this.#run("redo", event);
  }

  #handleInput(event: InputEvent): void {
    if (event.inputType === "historyUndo") this.#run("undo", event);
    else if (event.inputType === "historyRedo") this.#run("redo", event);
    else if (!this.#isInput && event.cancelable) this.#handleInsertion(event);
  }

  /** Inserts lines, which each browser would insert into a `contenteditable` element in its own way. */
  #handleInsertion(event: InputEvent): void {
    const isBreak = event.inputType === "insertParagraph" || event.inputType === "insertLineBreak";
    const isPaste = event.inputType === "insertFromPaste";
    const text = isBreak ? "\n" : (event.dataTransfer?.getData("text/plain") ?? event.data);
    if (text === null || !(isPaste || /[\r\n]/.test(text))) return;
    event.preventDefault();
    // The insertion may be a part of a larger one, whose earlier part is in the element.
    this.#read();
    const { selection } = this.#field;
    if (!selection || this.#shared === undefined) return;
    const [start, end] = selection.map((position) => positionIn(this.#text, this.#field, position)) as [number, number];
    const edit = { at: start, remove: end - start, insert: this.#field.show(text) };
    this.#do("jump", () => this.#client.splice(this.#pointer, [edit]));
  }

  #run(what: "undo" | "redo", event: Event): void {
    event.preventDefault();
    if (!this.#isComposing) this.#do("jump", () => this.#client[what](this.#pointer));
  }
}

/** Tells whether edits can have been made of a text. */
function fits(text: string, edits: readonly TextEdit[]): boolean {
  const last = edits.at(-1);
  return !last || last.at + last.remove <= text.length;
}
