//go:build tools

// The foreign witness is built from the same pinned versions.
package main

import _ "filippo.io/torchwood/cmd/litewitness"
