// Package read answers questions about counters from Redis. A question is planned for a layout and a moment
// (window.Plan), read in one round trip together with the cursors, and answered if layout, streams and clock
// were what the plan assumed; else it is planned again. Questions that come together share a trip.
package read
