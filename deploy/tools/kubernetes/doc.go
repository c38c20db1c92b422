// Package kubernetes builds and checks what is in deploy/kubernetes, in its tests.
package kubernetes
