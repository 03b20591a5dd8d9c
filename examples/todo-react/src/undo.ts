/** Taking back one's own last change, or a clearing. */

import type { PlaitError } from "plait-client";
import { useRpc } from "plait-client/react";
import { useEffect, useRef } from "react";

import { reason } from "./list.ts";
import type { TodoList } from "./list.ts";
import type { Notify } from "./notices.tsx";

export interface Undo {
  isBusy: boolean;
  undo: () => void;
  clearDone: () => void;
  /** Takes back the last clearing, whoever did it. */
  bringBack: () => void;
}

export function useUndo(list: TodoList, notify: Notify, dismiss: () => void): Undo {
  const own = useRpc(list, "undo");
  const clearing = useRpc(list, "clear_done");
  const back = useRpc(list, "bring_back");
  // The server clears, so that is no change of this page's own; here it is what Undo is expected to take back.
  const hasClearedLast = useRef(false);
  useEffect(() => list.subscribe(() => void (list.pending > 0 && (hasClearedLast.current = false))), [list]);

  const fail = (error: PlaitError) => notify({ text: reason(error), isError: true });
  const takeBack = (call: () => Promise<boolean>) => {
    hasClearedLast.current = false;
    // It may offer to bring back what this brings back.
    dismiss();
    void call().then((isUndone) => isUndone || notify({ text: "There is nothing of yours to undo" }), fail);
  };
  return {
    isBusy: own.pending || clearing.pending || back.pending,
    undo: () => takeBack(hasClearedLast.current ? back.call : own.call),
    clearDone: () => void clearing.call().then((count) => (hasClearedLast.current = count > 0), fail),
    bringBack: () => takeBack(back.call),
  };
}
