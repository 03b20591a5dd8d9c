// Runs one scenario: `node run.js SCENARIO ADDRESS`. Prints nothing, or exits with 1 and says why.

import * as scenarios from "./scenarios.js";

const [name, address] = process.argv.slice(2);
try {
  await scenarios[name](`http://${address}`);
  process.exit(0);
} catch (error) {
  console.error(error);
  process.exit(1);
}
