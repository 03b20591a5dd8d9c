/** The elements of a page in which a text can be typed: their content, their selection, and how they are changed. */

import type { TextEdit } from "./parts.js";

/** From where to where; both are the same for a caret. Its direction is kept by the field. */
export type Selection = readonly [start: number, end: number];

export interface Field {
  /** The content of the element. */
  readonly value: string;
  readonly selection: Selection | undefined;
  /** Returns a text as the element shows it: its lines may end in another way, or be one. */
  show(text: string): string;
  /** The characters of a text that the element does not show. */
  readonly hidden: RegExp;
  /** Changes the content of the element to `next`. The selection is then the given one, if there is one. */
  write(edits: readonly TextEdit[], next: string, selection: Selection | undefined): void;
  /** Whether the user may type. */
  allow(isAllowed: boolean): void;
  /** Gives the element back as it was, except its text. */
  release(): void;
}

// Empty if the types of pages are missing, as in Node; otherwise these are a part of those types.
declare global {
  interface HTMLElement {}
  interface HTMLInputElement {}
  interface HTMLTextAreaElement {}
}

/** Elements in which `bindText` can show a text. */
export type TextElement = HTMLTextAreaElement | HTMLInputElement | HTMLElement;

/** Returns the field of an element. Throws a TypeError for an element in which no text can be typed. */
export function fieldOf(element: TextElement): Field {
  if (element instanceof HTMLTextAreaElement || element instanceof HTMLInputElement) return new InputField(element);
  if (element.hasAttribute("contenteditable")) return new EditableField(element);
  throw new TypeError('bindText takes a textarea, an input, or an element with contenteditable="plaintext-only"');
}

/** Returns the position in a text for a position in the text that a field shows. */
export function positionIn(text: string, field: Field, shown: number): number {
  if (field.show(text) === text) return shown;
  let position = shown;
  for (const { index } of text.matchAll(field.hidden)) {
    if (index >= position) break;
    position++;
  }
  return position;
}

/** Returns the lines of a text as an element with several lines shows them. */
function toLines(text: string): string {
  // Searching one character is much faster than searching a pattern.
  return text.includes("\r") ? text.replace(/\r\n?/g, "\n") : text;
}

const HALF_LINE_ENDS = /\r(?=\n)/g;
const LINE_ENDS = /[\r\n]/g;

class InputField implements Field {
  readonly #element: HTMLTextAreaElement | HTMLInputElement;
  readonly #wasReadonly: boolean;
  readonly hidden: RegExp;

  constructor(element: HTMLTextAreaElement | HTMLInputElement) {
    this.hidden = element instanceof HTMLTextAreaElement ? HALF_LINE_ENDS : LINE_ENDS;
    this.#element = element;
    this.#wasReadonly = element.readOnly;
  }

  get value(): string {
    return this.#element.value;
  }

  get selection(): Selection | undefined {
    const { selectionStart, selectionEnd } = this.#element;
    // Inputs for addresses and numbers do not tell their selection.
    return selectionStart === null || selectionEnd === null ? undefined : [selectionStart, selectionEnd];
  }

  show(text: string): string {
    return this.hidden === LINE_ENDS ? text.replace(LINE_ENDS, "") : toLines(text);
  }

  write(edits: readonly TextEdit[], next: string, selection: Selection | undefined): void {
    const element = this.#element;
    // A change of the text makes a selection go forward.
    const direction = element.selectionDirection ?? "none";
    if (selection) {
      // Unlike a new value, this keeps the scroll position of the element.
      for (const { at, remove, insert } of [...edits].reverse())
        element.setRangeText(insert, at, at + remove, "preserve");
    }
    if (element.value !== next) element.value = next;
    const [start, end] = selection ?? [null, null];
    // Some browsers focus the element whose selection is set.
    const isThere = element.selectionStart === start && element.selectionEnd === end;
    if (selection && !(isThere && element.selectionDirection === direction))
      element.setSelectionRange(start, end, direction);
  }

  allow(isAllowed: boolean): void {
    this.#element.readOnly = this.#wasReadonly || !isAllowed;
  }

  release(): void {
    this.#element.readOnly = this.#wasReadonly;
  }
}

/** An element with `contenteditable`: one text node, and a line break that shows an empty last line. */
class EditableField implements Field {
  readonly #element: HTMLElement;
  readonly #editable: string;
  readonly #whiteSpace: string;
  readonly hidden = HALF_LINE_ENDS;

  constructor(element: HTMLElement) {
    this.#element = element;
    this.#editable = element.contentEditable;
    this.#whiteSpace = element.style.whiteSpace;
    if (!getComputedStyle(element).whiteSpace.startsWith("pre")) element.style.whiteSpace = "pre-wrap";
  }

  get value(): string {
    return textBefore(this.#element, undefined, 0);
  }

  get selection(): Selection | undefined {
    const range = this.#selection;
    if (!range) return undefined;
    const at = (node: Node, offset: number) => textBefore(this.#element, node, offset).length;
    return [at(range.startContainer, range.startOffset), at(range.endContainer, range.endOffset)];
  }

  show(text: string): string {
    return toLines(text);
  }

  write(edits: readonly TextEdit[], next: string, selection: Selection | undefined): void {
    const isBackward = this.#isBackward;
    const text = this.#textNode();
    // Unlike a new text, this leaves the selection in its place.
    for (const { at, remove, insert } of [...edits].reverse()) text.replaceData(at, remove, insert);
    if (text.data !== next) text.data = next;
    const isOpen = next === "" || next.endsWith("\n");
    const { lastChild } = this.#element;
    if (isOpen && lastChild === text) this.#element.append(document.createElement("br"));
    else if (!isOpen && lastChild !== text) lastChild?.remove();
    const there = this.selection;
    const isThere = there?.[0] === selection?.[0] && there?.[1] === selection?.[1];
    if (selection && !(isThere && this.#isBackward === isBackward)) select(text, selection, isBackward);
  }

  allow(isAllowed: boolean): void {
    const editable = isAllowed ? this.#editable : "false";
    if (this.#element.contentEditable !== editable) this.#element.contentEditable = editable;
  }

  release(): void {
    this.#element.contentEditable = this.#editable;
    this.#element.style.whiteSpace = this.#whiteSpace;
  }

  get #selection(): Range | undefined {
    const selection = document.getSelection();
    const range = selection && selection.rangeCount > 0 ? selection.getRangeAt(0) : undefined;
    return range && this.#element.contains(range.commonAncestorContainer) ? range : undefined;
  }

  /** Whether the end was selected first, so that the keys move the start. */
  get #isBackward(): boolean {
    const range = this.#selection;
    const { focusNode, focusOffset } = document.getSelection() ?? {};
    return !!range && !range.collapsed && range.startContainer === focusNode && range.startOffset === focusOffset;
  }

  /** Returns the one text node; if a browser has made more of it, the element is brought back to one. */
  #textNode(): Text {
    const [first, second, ...more] = this.#element.childNodes;
    if (first instanceof Text && more.length === 0 && (!second || second.nodeName === "BR")) return first;
    const text = document.createTextNode(this.value);
    const { selection } = this;
    const isBackward = this.#isBackward;
    this.#element.replaceChildren(text);
    if (selection) select(text, selection, isBackward);
    return text;
  }
}

function select(text: Text, [start, end]: Selection, isBackward: boolean): void {
  const [anchor, focus] = isBackward ? [end, start] : [start, end];
  document.getSelection()?.setBaseAndExtent(text, anchor, text, focus);
}

/** Tells whether a node is a line of its own, which browsers make where a script inserts several. */
function isBlock({ nodeName }: Node): boolean {
  return nodeName === "DIV" || nodeName === "P";
}

/** Returns the text of an element up to a place in it, or all of it. */
function textBefore(element: HTMLElement, node: Node | undefined, offset: number): string {
  const stop = node && node.nodeType !== Node.TEXT_NODE ? node.childNodes[offset] : node;
  let text = "";
  const add = (each: Node): boolean => {
    const { previousSibling: before } = each;
    if (before && (isBlock(before) || isBlock(each))) text += "\n";
    if (each === stop) {
      if (each === node) text += (each as Text).data.slice(0, offset);
      return false;
    }
    if (each.nodeType === Node.TEXT_NODE) text += (each as Text).data;
    // The last line break of a line only gives it a height.
    else if (each.nodeName === "BR" && each.nextSibling && !isBlock(each.nextSibling)) text += "\n";
    return [...each.childNodes].every(add) && !(each === node && stop === undefined);
  };
  [...element.childNodes].every(add);
  return text;
}
