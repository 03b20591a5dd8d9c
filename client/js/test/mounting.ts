/** Components in elements of the page, which are gone after each test, with the clients that they shared. */

import type { ReactNode } from "react";
import { createRoot } from "react-dom/client";
import type { Root } from "react-dom/client";
import { afterEach, expect, vi } from "vitest";

import type { ThreadClient } from "../src/client.js";
import { SharedClients } from "../src/shared.js";

export const roots: Root[] = [];

/** Unmounts what a test has mounted, in the file that calls it; fails if React has complained. */
export function mounting(): void {
  const shared = vi.spyOn(SharedClients.prototype, "get");
  const complaints = vi.spyOn(console, "error");

  afterEach(() => {
    for (const root of roots.splice(0)) root.unmount();
    document.body.replaceChildren();
    // One that is released would connect again for a moment, also after its page is gone.
    for (const { value } of shared.mock.results) void (value as ThreadClient).close();
    shared.mockClear();
    expect(complaints.mock.calls).toEqual([]);
    complaints.mockClear();
  });
}

/** Renders into a new element of the page. */
export function mount(node: ReactNode): { root: Root; element: HTMLElement } {
  const element = document.body.appendChild(document.createElement("main"));
  const root = createRoot(element);
  roots.push(root);
  root.render(node);
  return { root, element };
}

/** Resolves when an element's text is this. */
export async function until(element: HTMLElement, text: string): Promise<void> {
  await vi.waitFor(() => expect(element.textContent).toBe(text), { timeout: 5_000, interval: 5 });
}
