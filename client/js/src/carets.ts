/** The selections of others in a CodeMirror editor, from the presence of the thread. */

import { RangeSet, StateEffect, StateField } from "@codemirror/state";
import type { Extension, Range } from "@codemirror/state";
import { Decoration, EditorView, ViewPlugin, WidgetType } from "@codemirror/view";
import type { DecorationSet, PluginValue, ViewUpdate } from "@codemirror/view";

import type { ThreadClient } from "./client.js";
import { isObject } from "./json.js";
import type { Json, JsonObject } from "./json.js";
import type { PresenceRecord } from "./presence.js";

/**
 * Returns the extension that shows the selections of others in the text at a pointer, and tells them the editor's own
 * selection.
 */
export function remoteCarets(client: ThreadClient, pointer: string, key: string): Extension {
  const carets = ViewPlugin.define((view) => new Carets(view, client, pointer, key), {
    eventObservers: {
      // This comes before another editor gets the focus, and sets the same member.
      blur() {
        this.leave();
      },
    },
  });
  return [shown, theme, carets];
}

const show = StateEffect.define<DecorationSet>();
const shown = StateField.define<DecorationSet>({
  create: () => Decoration.none,
  update: (before, { changes, effects }) =>
    effects.reduce((value, effect) => (effect.is(show) ? effect.value : value), before.map(changes)),
  provide: (field) => EditorView.decorations.from(field),
});

/** The content of the member of the presence: in which text, and from where to where. */
interface Selection {
  pointer: string;
  anchor: number;
  head: number;
}

class Carets implements PluginValue {
  readonly #view: EditorView;
  readonly #client: ThreadClient;
  readonly #pointer: string;
  readonly #key: string;
  readonly #unsubscribe: () => void;
  #presence: PresenceRecord | undefined;
  #connection: string | undefined;
  // Whether the others know of a selection in this editor, not in another one of the page.
  #isTold = false;
  #isClosed = false;

  constructor(view: EditorView, client: ThreadClient, pointer: string, key: string) {
    this.#view = view;
    this.#client = client;
    this.#pointer = pointer;
    this.#key = key;
    this.#unsubscribe = client.subscribe(() => this.#showLater());
    this.#showLater();
  }

  destroy(): void {
    this.#isClosed = true;
    this.#unsubscribe();
    this.leave();
  }

  /** Tells the others where the selection is; without the focus, that there is none. */
  update({ view, docChanged, selectionSet, focusChanged }: ViewUpdate): void {
    if (!docChanged && !selectionSet && !focusChanged) return;
    if (!view.hasFocus) return this.leave();
    const { anchor, head } = view.state.selection.main;
    this.#isTold = true;
    this.#tell({ pointer: this.#pointer, anchor, head });
  }

  /** Tells the others that there is no selection in this editor, if they were told of one. */
  leave(): void {
    if (this.#isTold) this.#tell(null);
    this.#isTold = false;
  }

  #tell(selection: Selection | null): void {
    const { status, ownPresence } = this.#client;
    const own = isObject(ownPresence) ? ownPresence : {};
    const before = own[this.#key] ?? null;
    if (status === "closed" || JSON.stringify(before) === JSON.stringify(selection)) return;
    this.#client.setPresence({ ...own, [this.#key]: selection });
  }

  /** Returns another's selection in this text, if any. */
  #selectionOf(data: Json): JsonObject | undefined {
    const selection = isObject(data) ? data[this.#key] : undefined;
    return isObject(selection) && selection["pointer"] === this.#pointer ? selection : undefined;
  }

  /** Shows the selections as soon as the editor can be changed, which may be in the middle of an update. */
  #showLater(): void {
    queueMicrotask(() => this.#isClosed || this.#show());
  }

  #show(): void {
    const { presence, connection } = this.#client;
    if (presence === this.#presence && connection === this.#connection) return;
    [this.#presence, this.#connection] = [presence, connection];
    const { length } = this.#view.state.doc;
    const ranges = Object.entries(presence).flatMap(([id, data]) => {
      return id === connection ? [] : rangesOf(id, data, this.#selectionOf(data), length);
    });
    this.#view.dispatch({ effects: show.of(RangeSet.of(ranges, true)) });
  }
}

/** Returns the decorations of a connection: its caret, and its selected text. */
function rangesOf(id: string, data: Json, selection: JsonObject | undefined, length: number): Range<Decoration>[] {
  if (!isObject(data) || !selection) return [];
  const [anchor, head] = [selection["anchor"], selection["head"]].map((position) => {
    // The others' text may be a moment ahead.
    return Number.isSafeInteger(position) ? Math.max(0, Math.min(position as number, length)) : undefined;
  });
  if (anchor === undefined || head === undefined) return [];
  const color = colorOf(data["color"], id);
  const name = typeof data["name"] === "string" ? data["name"] : "";
  const caret = Decoration.widget({ widget: new Caret(name, color), side: 1 }).range(head);
  if (anchor === head) return [caret];
  const style = `background-color: color-mix(in srgb, ${color} 25%, transparent)`;
  const mark = Decoration.mark({ class: "cm-plait-selection", attributes: { style } });
  return [mark.range(Math.min(anchor, head), Math.max(anchor, head)), caret];
}

/** Returns a color that others have chosen, if it is valid, or one for their id. */
function colorOf(color: Json | undefined, id: string): string {
  if (typeof color === "string" && /^[\w#(),.% -]+$/.test(color)) return color;
  const hue = [...id].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) % 360, 0);
  return `hsl(${hue} 70% 40%)`;
}

class Caret extends WidgetType {
  readonly #name: string;
  readonly #color: string;

  constructor(name: string, color: string) {
    super();
    this.#name = name;
    this.#color = color;
  }

  override eq(other: Caret): boolean {
    return other.#name === this.#name && other.#color === this.#color;
  }

  toDOM(): HTMLElement {
    const caret = document.createElement("span");
    caret.className = "cm-plait-caret";
    caret.ariaHidden = "true";
    caret.style.color = this.#color;
    // Without a character between, a browser would draw the line as ending here.
    caret.append("\u2060");
    if (this.#name) {
      const label = caret.appendChild(document.createElement("span"));
      label.className = "cm-plait-name";
      label.style.backgroundColor = this.#color;
      label.append(this.#name);
    }
    return caret;
  }

  override ignoreEvent(): boolean {
    return true;
  }
}

const theme = EditorView.baseTheme({
  ".cm-plait-caret": {
    position: "relative",
    borderLeft: "2px solid currentColor",
    margin: "0 -1px",
    pointerEvents: "none",
  },
  ".cm-plait-name": {
    position: "absolute",
    bottom: "100%",
    left: "-2px",
    padding: "0 4px",
    borderRadius: "3px 3px 3px 0",
    font: "11px/1.4 system-ui, sans-serif",
    color: "white",
    whiteSpace: "nowrap",
  },
});
