/** Errors that are not caught, which would end a test otherwise. */

import { Arrivals } from "./server.js";

/** Runs a test that hears of uncaught errors; returns those that it has not taken. */
export async function uncaught(
  name: "uncaughtException" | "unhandledRejection",
  run: (heard: Arrivals<unknown>) => Promise<void>,
): Promise<readonly unknown[]> {
  const heard = new Arrivals<unknown>();
  const others = process.listeners(name as "uncaughtException");
  process.removeAllListeners(name);
  process.on(name, (error: unknown) => heard.put(error));
  try {
    await run(heard);
    return heard.waiting;
  } finally {
    process.removeAllListeners(name);
    for (const other of others) process.on(name as "uncaughtException", other);
  }
}
