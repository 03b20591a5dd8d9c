// Waiting for what other code does.

/** Milliseconds after which what has not happened is taken not to happen. */
export const TIMEOUT = 60_000;

const waiters = new Set();

/** Looks again at everything that is waited for. To be called whenever something has happened. */
export function changed() {
  for (const look of [...waiters]) look();
}

/** Waits until `condition` holds, and rejects with `what` when it does not in time. */
export function until(what, condition) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      waiters.delete(look);
      reject(new Error(`waited ${TIMEOUT / 1000} s until ${what}`));
    }, TIMEOUT);
    function look() {
      if (!condition()) return;
      clearTimeout(timer);
      waiters.delete(look);
      resolve();
    }
    waiters.add(look);
    look();
  });
}
