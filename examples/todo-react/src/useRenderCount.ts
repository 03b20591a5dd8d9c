/** Writes on an element how many times its component has rendered. */

import { useEffect, useRef } from "react";
import type { RefObject } from "react";

export function useRenderCount<Node extends HTMLElement>(): RefObject<Node | null> {
  const node = useRef<Node>(null);
  const count = useRef(0);
  useEffect(() => {
    count.current++;
    if (node.current) node.current.dataset["renders"] = String(count.current);
  });
  return node;
}
