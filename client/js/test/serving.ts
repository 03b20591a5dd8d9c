/** A server for each test of a file, and the clients that are closed after it. */

import { afterEach, beforeEach } from "vitest";

import { Server } from "./server.js";

/** The server of the test that runs. */
export let server: Server;

/** The clients that it has opened. */
export const clients: { close(): void }[] = [];

/** Starts a server for each test of the file that calls it. */
export function serving(): void {
  beforeEach(async () => {
    server = new Server();
    await server.start();
  });

  afterEach(async () => {
    for (const client of clients.splice(0)) client.close();
    await server.stop();
  });
}
