// Package chart draws the hits of counters step by step as SVG.
//
// # What it promises
//
//   - The same series make the same picture, to the byte. Nothing is loaded from anywhere, and no script runs.
//   - There is no line where nothing was counted, or is still being counted: a step that has just begun would look like
//     a fall. Steps that may lack hits are shaded.
//   - Names of counters come from strangers. They are cut where their box ends, and turn the direction of nothing else.
//   - The colours can be told apart by people who see few of them, in light and in dark.
//
// It knows nothing of HTTP, and has no state and no goroutines. chart.go lays the parts out, axes.go has the numbers and
// times beside the plot, plot.go the lines, label.go makes names fit.
package chart
