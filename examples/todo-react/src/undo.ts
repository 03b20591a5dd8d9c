/** Undo of a page's own last change, or of a clearing. */

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
  /** Undoes the last clearing, by any client. */
  bringBack: () => void;
}

export function useUndo(list: TodoList, notify: Notify, dismiss: () => void): Undo {
  const own = useRpc(list, "undo");
  const clearing = useRpc(list, "clear_done");
  const back = useRpc(list, "bring_back");
  // A clearing is a change of the server, not of this page; still, people expect Undo to take it back.
  const hasClearedLast = useRef(false);
  useEffect(() => list.subscribe(() => void (list.pending > 0 && (hasClearedLast.current = false))), [list]);

  const fail = (error: PlaitError) => notify({ text: reason(error), isError: true });
  const takeBack = (call: () => Promise<boolean>) => {
    hasClearedLast.current = false;
    // Hide the notice, which may offer to bring back the same todos.
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
