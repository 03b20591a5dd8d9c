/** Shows whether the page is live, and the number of waiting changes. */

import { useThreadStatus } from "plait-client/react";
import { useCallback, useSyncExternalStore } from "react";

import type { TodoList } from "./list.ts";

export function StatusBadge({ list }: { list: TodoList }) {
  const status = useThreadStatus(list);
  const waiting = usePending(list);
  return (
    <p className="status" role="status" data-status={status}>
      {status === "online" && "Live"}
      {status === "connecting" && "Connecting…"}
      {status === "offline" && (waiting > 0 ? `Offline · ${waiting} waiting` : "Offline")}
      {status === "closed" && (
        <>
          {list.error?.message ?? "Closed"} <button onClick={() => location.reload()}>Reload</button>
        </>
      )}
    </p>
  );
}

function usePending(list: TodoList): number {
  const subscribe = useCallback((fn: () => void) => list.subscribe(fn), [list]);
  return useSyncExternalStore(subscribe, () => list.pending);
}
