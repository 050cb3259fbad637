export { StatewardError } from "./errors.js";
export { TypeNotAllowedError } from "./guarded.js";
export { StatewardSaver, type StatewardSaverOptions } from "./saver.js";
