// node tests/agent.mjs TARGET THREAD [METHOD N before|in|after]: an agent that kills itself at the n-th call of a method.
// It prints the end state as JSON if it comes to its end.
import { StatewardSaver } from "../dist/index.js";
import { aim, build, play } from "./graph.mjs";

const [target, thread, method, nth, when] = process.argv.slice(2);
const saver = new StatewardSaver(target);
if (method) aim(saver, method, Number(nth), when, () => process.kill(process.pid, "SIGKILL"));
console.log(JSON.stringify(await play(build(saver), thread)));
saver.close();
