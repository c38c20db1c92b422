// Package kubernetes builds and scores what is in deploy/kubernetes, in its tests.
package kubernetes
