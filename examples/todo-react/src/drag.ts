/** Dragging a row to another place, with a mouse, a pen or a finger. The list changes once, when it is dropped. */

/** Follows the pointer until it is released, then calls `onDrop` with the id of the row after its place. */
export function drag(row: HTMLElement, start: PointerEvent, onDrop: (before: string | undefined) => void): void {
  const rows = row.parentElement;
  if (!rows || start.button !== 0) return;
  const all = [...rows.children] as HTMLElement[];
  const others = all.filter((each) => each !== row);
  const from = all.indexOf(row);
  const boxes = new Map(all.map((each) => [each, each.getBoundingClientRect()] as const));
  const { top, height } = boxes.get(row)!;
  const startedAt = start.clientY + scrollY;
  const listening = new AbortController();
  let to = from;

  const follow = (event: PointerEvent) => {
    if (event.pointerId !== start.pointerId) return;
    const by = event.clientY + scrollY - startedAt;
    const isBefore = (each: HTMLElement) => middle(boxes.get(each)!) < top + by + (by > 0 ? height : 0);
    to = others.filter(isBefore).length;
    rows.dataset["dragging"] = "";
    row.dataset["dragged"] = "";
    row.style.translate = `0 ${by}px`;
    others.forEach((each, index) => {
      const shift = Number(index < from && index >= to) - Number(index >= from && index < to);
      each.style.translate = shift === 0 ? "" : `0 ${shift * height}px`;
    });
  };
  const end = (isDropped: boolean) => {
    listening.abort();
    delete rows.dataset["dragging"];
    delete row.dataset["dragged"];
    for (const each of all) each.style.translate = "";
    if (isDropped && to !== from) onDrop(others[to]?.dataset["todo"]);
  };

  const { signal } = listening;
  addEventListener("pointermove", follow, { signal });
  addEventListener("pointerup", (event) => event.pointerId === start.pointerId && end(true), { signal });
  addEventListener("pointercancel", (event) => event.pointerId === start.pointerId && end(false), { signal });
  addEventListener("keydown", (event) => event.key === "Escape" && end(false), { signal });
}

function middle({ top, height }: DOMRect): number {
  return top + height / 2;
}
