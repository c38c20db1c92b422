// Package kubernetes renders and checks the chart in deploy/chart, in its tests.
package kubernetes
