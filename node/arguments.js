// What people pass, checked and worded: `<op>: <argument> must <rule>, got <value>`.
"use strict";

const shown = (value) => {
  if (ArrayBuffer.isView(value) && "length" in value) return `a ${value.constructor.name} of ${value.length}`;
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === "string") return JSON.stringify(value);
  return typeof value === "object" && value !== null ? `an object ${value.constructor?.name ?? ""}`.trim() : String(value);
};

const refuse = (Kind, op, name, rule, value) => {
  throw new Kind(`${op}: ${name} must ${rule}, got ${shown(value)}`);
};

const isList = (value) => Array.isArray(value) || value instanceof Float32Array;

/** The options that were given over their defaults; an unknown name is an error. */
function options(op, given, defaults) {
  if (given === undefined) return defaults;
  if (given === null || typeof given !== "object" || isList(given)) refuse(TypeError, op, "options", "be an object", given);
  for (const name of Object.keys(given))
    if (!(name in defaults)) refuse(TypeError, op, "options", `be of ${Object.keys(defaults).join(", ")}`, name);
  const chosen = { ...defaults };
  for (const [name, value] of Object.entries(given)) if (value !== undefined) chosen[name] = value;
  return chosen;
}

/** Numbers as a Float32Array, which is not copied where it is one. */
function vector(op, name, value) {
  if (!isList(value)) refuse(TypeError, op, name, "be a Float32Array or an array of numbers", value);
  if (value instanceof Float32Array) return value;
  const bad = value.findIndex((x) => typeof x !== "number");
  if (bad >= 0) refuse(TypeError, op, `${name}[${bad}]`, "be a number", value[bad]);
  return Float32Array.from(value);
}

/** Rows one after the other in a Float32Array; from a list of vectors they are copied. */
function rows(op, name, value, columns, whose) {
  if (value instanceof Float32Array) {
    if (value.length === 0 || value.length % columns)
      refuse(RangeError, op, name, `hold rows of ${columns} numbers, as ${whose}`, value);
    return value;
  }
  if (!Array.isArray(value) || value.length === 0 || !value.every(isList))
    refuse(TypeError, op, name, "be a Float32Array or an array of vectors", value);
  const flat = new Float32Array(value.length * columns);
  for (let i = 0; i < value.length; ++i) {
    if (value[i].length !== columns) refuse(RangeError, op, `${name}[${i}]`, `have ${columns} numbers, as ${whose}`, value[i]);
    flat.set(value[i] instanceof Float32Array ? value[i] : vector(op, `${name}[${i}]`, value[i]), i * columns);
  }
  return flat;
}

/** Integers within [least, below) as an Int32Array. */
function integers(op, name, value, least, below) {
  if (!Array.isArray(value) && !(value instanceof Int32Array))
    refuse(TypeError, op, name, "be an Int32Array or an array of integers", value);
  for (let i = 0; i < value.length; ++i)
    if (!Number.isInteger(value[i]) || value[i] < least || value[i] >= below)
      refuse(RangeError, op, `${name}[${i}]`, `be an integer within [${least}, ${below})`, value[i]);
  return value instanceof Int32Array ? value : Int32Array.from(value);
}

function number(op, name, value, rule, holds) {
  if (typeof value !== "number") refuse(TypeError, op, name, "be a number", value);
  if (!holds(value)) refuse(RangeError, op, name, rule, value);
  return value;
}

const weight = (op, name, value) => number(op, name, value, "be within [0, 1]", (x) => x >= 0 && x <= 1);
const count = (op, name, value) => number(op, name, value, "be an integer of at least 1", (x) => Number.isInteger(x) && x >= 1);

/** Words which row is not finite, which the kernels do not name. */
function finite(op, name, values, columns) {
  const bad = values.findIndex((x) => !Number.isFinite(x));
  if (bad < 0) return;
  const where = columns ? ` in row ${Math.floor(bad / columns)}` : ` at position ${bad}`;
  throw new RangeError(`${op}: ${name} must be finite, got ${values[bad]}${where}`);
}

module.exports = { count, finite, integers, number, options, refuse, rows, vector, weight };
