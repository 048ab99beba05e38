// Runs in the page that prints figures. Whatever formats are asked for one after the other, a figure is drawn once: as SVG,
// of which the others are made.
(() => {
  const draw = Plotly.toImage
  const SHARPEST = 8 // pixels of what is drawn by WebGL, inside the SVG, for each of the page
  let last = {}

  Plotly.toImage = async (figure, options) => {
    const { format, width, height, imageDataOnly } = options
    const asked = JSON.stringify([figure.data, figure.layout, width, height])
    if (last.asked !== asked) {
      const sharp = { ...figure, config: { ...figure.config, plotGlPixelRatio: SHARPEST } }
      const svg = await draw(sharp, { format: 'svg', width, height, imageDataOnly: true })
      last = { asked, svg: svg.replace('<svg ', '<svg text-rendering="geometricPrecision" ') } // as in this page
    }
    const { svg } = last
    if (format === 'svg') return imageDataOnly ? svg : `data:image/svg+xml,${encodeURIComponent(svg)}`
    const canvas = document.createElement('canvas')
    const url = await Plotly.Snapshot.svgToImg({ ...options, svg, canvas, promise: true })
    return imageDataOnly ? url.slice(url.indexOf(',') + 1) : url
  }
})()
