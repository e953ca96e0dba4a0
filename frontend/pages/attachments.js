// Images and files of the next message, as parts of its content.
import { element, find, quietButton } from "./common.js";

const OFFICE = "application/vnd.openxmlformats-officedocument";
const TYPES = {
  pdf: "application/pdf",
  html: "text/html",
  htm: "text/html",
  txt: "text/plain",
  json: "text/plain",
  md: "text/markdown",
  csv: "text/csv",
  docx: `${OFFICE}.wordprocessingml.document`,
  xlsx: `${OFFICE}.spreadsheetml.sheet`,
  pptx: `${OFFICE}.presentationml.presentation`,
};

let parts = [];
let reading = Promise.resolve(); // the end of the files so far

/** The parts of the next message, once its files are read. */
export const attachedParts = async () => (await reading, parts);

/** Replaces the parts of the next message, and shows them. */
export function setAttached(next) {
  parts = next;
  const nodes = parts.map((part) => {
    const remove = quietButton("Remove", () => setAttached(parts.filter((each) => each !== part)));
    return element("figure", {}, partView(part), remove);
  });
  find("attached").replaceChildren(...nodes);
}

/** Shows a part of a message: an image, or a file's name. */
export function partView(part) {
  if (part.type === "image_url") return element("img", { src: part.image_url.url, alt: "Your image" });
  return element("p", { className: "attachment", textContent: part.file.filename });
}

/** The media type by a file's name, since not every system knows it; undefined: the file has no text and is no image. */
function typeOf({ name, type }) {
  const known = TYPES[name.split(".").at(-1).toLowerCase()];
  return known ?? (/^(image|text)\//.test(type) ? type : undefined);
}

async function partOf(file) {
  const type = typeOf(file);
  if (!type) throw new Error(`${file.name} has a type that cannot be sent. Send an image, or a PDF, text, HTML, docx, xlsx or pptx file.`);
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(new Error(`${file.name} cannot be read: ${reader.error.message}`)));
    reader.readAsDataURL(file);
  });
  if (type.startsWith("image/")) return { type: "image_url", image_url: { url } };
  return { type: "file", file: { filename: file.name, file_data: `data:${type};base64,${url.split(",")[1] ?? ""}` } };
}

/** Adds files to the next message. `tell` gets the reason for one that cannot be sent. */
export function attach(files, tell) {
  const add = async (file) => setAttached([...parts, await partOf(file)]);
  for (const file of files) reading = reading.then(() => add(file)).catch((error) => tell(error.message));
}
