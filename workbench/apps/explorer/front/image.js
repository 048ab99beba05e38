// The input's own pixels.

/** The image of an input as a canvas; grey, so that no colour of its own is taken for attention. Null for a text. */
export function inputImage({ image: size, pixels }, grey) {
  if (!size) return null;
  const [height, width] = size;
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    const [red, green, blue] = [pixels[i * 3], pixels[i * 3 + 1], pixels[i * 3 + 2]];
    const light = 48 + 0.74 * (0.2126 * red + 0.7152 * green + 0.0722 * blue); // blue is seen on neither black nor white
    image.data.set(grey ? [light, light, light, 255] : [red, green, blue, 255], i * 4);
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}
