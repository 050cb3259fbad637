export { StatewardError } from "./errors.js";
export { StatewardSaver, type StatewardSaverOptions } from "./saver.js";
