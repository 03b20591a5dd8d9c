/** An extension for CodeMirror 6: a text of a thread in an editor, and the carets of others in it. */

import { Annotation, EditorState, StateEffect, StateField, Transaction } from "@codemirror/state";
import type { Extension } from "@codemirror/state";
import { EditorView, ViewPlugin } from "@codemirror/view";
import type { PluginValue, ViewUpdate } from "@codemirror/view";

import { remoteCarets } from "./carets.js";
import type { ThreadClient } from "./client.js";
import { parse, textAt } from "./patch.js";
import type { TextChange, TextEdit } from "./parts.js";
import type { Document } from "./json.js";
import { typed } from "./typing.js";

export interface PlaitTextOptions {
  /**
   * The member of each connection's presence that holds its selection: `{ pointer, anchor, head }`. The members `name`
   * and `color` beside it are shown with it. Without this option, no selections are sent or shown.
   */
  presence?: string | undefined;
}

/**
 * Returns the extension that keeps an editor's document the same as the string at a JSON pointer. Changes of others are
 * left out of the editor's own history, so that its undo takes back only what was typed in it. While there is no text,
 * or it may not be changed, the editor is readonly.
 */
export function plaitText(
  client: ThreadClient<any, any, any>,
  pointer: string,
  { presence }: PlaitTextOptions = {},
): Extension {
  return [
    // A line end of another kind is two characters of the text, and must be in the document, too.
    EditorState.lineSeparator.of("\n"),
    // The line ends in pasted or dropped text are those of the clipboard.
    EditorView.clipboardInputFilter.of((pasted) => pasted.replace(/\r\n?/g, "\n")),
    isLocked,
    ViewPlugin.define((view) => new Binding(view, client, pointer)),
    presence === undefined ? [] : remoteCarets(client, pointer, presence),
  ];
}

/** Marks a transaction that comes from the thread. */
const fromThread = Annotation.define<boolean>();

const lock = StateEffect.define<boolean>();
const isLocked = StateField.define<boolean>({
  create: () => true,
  update: (before, { effects }) => effects.reduce((value, effect) => (effect.is(lock) ? effect.value : value), before),
  // Another extension may make the editor readonly for reasons of its own.
  provide: (field) => EditorState.readOnly.computeN([field], (state) => (state.field(field) ? [true] : [])),
});

class Binding implements PluginValue {
  readonly #view: EditorView;
  readonly #client: ThreadClient;
  readonly #pointer: string;
  readonly #parts: readonly string[];
  readonly #unsubscribes: (() => void)[];
  // Whether the editor's own change is being passed to the thread.
  #isTyping = false;
  #isClosed = false;

  constructor(view: EditorView, client: ThreadClient, pointer: string) {
    this.#view = view;
    this.#client = client;
    this.#pointer = pointer;
    this.#parts = parse(pointer);
    this.#unsubscribes = [
      client.onText(pointer, (change) => this.#handleText(change)),
      client.subscribe(() => this.#syncLater()),
    ];
    this.#syncLater();
  }

  destroy(): void {
    this.#isClosed = true;
    this.#unsubscribes.forEach((unsubscribe) => unsubscribe());
  }

  /** Passes the changes of the editor to the thread. */
  update({ transactions }: ViewUpdate): void {
    for (const transaction of transactions) {
      if (!transaction.docChanged || transaction.annotation(fromThread)) continue;
      const edits: TextEdit[] = [];
      transaction.changes.iterChanges((at, end, _, __, inserted) => {
        edits.push({ at, remove: end - at, insert: inserted.toString() });
      }, true);
      this.#isTyping = true;
      void this.#client.splice(this.#pointer, edits);
      this.#isTyping = false;
      // The change may have been refused at once.
      this.#syncLater();
    }
  }

  #handleText({ text, edits }: TextChange): void {
    if (this.#isTyping) return;
    const { doc } = this.#view.state;
    const last = edits.at(-1);
    if (text !== undefined && last && last.at + last.remove <= doc.length) this.#change(edits);
    this.#sync();
  }

  /** Syncs as soon as the editor can be changed, which may be in the middle of an update. */
  #syncLater(): void {
    queueMicrotask(() => this.#isClosed || this.#sync());
  }

  /** Brings the editor to the shown text of the thread, if it differs. */
  #sync(): void {
    const { readonly, status, state } = this.#client;
    const text = textAt(state as Document, this.#parts);
    const locks = readonly || status === "closed" || text === undefined;
    if (locks !== this.#view.state.field(isLocked)) this.#view.dispatch({ effects: lock.of(locks) });
    const there = this.#view.state.doc.toString();
    if (there !== (text ?? "")) this.#change(typed(there, text ?? "", 0, this.#client.editsBetween));
  }

  #change(edits: readonly TextEdit[]): void {
    this.#view.dispatch({
      changes: edits.map(({ at, remove, insert }) => ({ from: at, to: at + remove, insert })),
      annotations: [fromThread.of(true), Transaction.remote.of(true), Transaction.addToHistory.of(false)],
    });
  }
}
