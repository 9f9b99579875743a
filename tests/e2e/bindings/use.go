// What a program in Go does with go-ceph; its arguments are ceph.conf and a pool.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must(good bool, what string) {
	if !good {
		panic("not so: " + what)
	}
}

func main() {
	conn, err := rados.NewConn()
	check(err)
	check(conn.ReadConfigFile(os.Args[1]))
	check(conn.Connect())
	defer conn.Shutdown()
	stat, err := conn.GetClusterStats()
	check(err)
	must(stat.Kb > 0, "the cluster has room")
	io, err := conn.OpenIOContext(os.Args[2])
	check(err)
	defer io.Destroy()
	text := []byte("from Go")
	check(io.WriteFull("go", text))
	got := make([]byte, 100)
	n, err := io.Read("go", got, 0)
	check(err)
	must(bytes.Equal(got[:n], text), "what was written is read")
	check(io.SetXattr("go", "colour", text))
	check(io.SetOmap("go", map[string][]byte{"a": text, "b": text}))
	keys, err := io.GetAllOmapValues("go", "", "", 10)
	check(err)
	must(len(keys) == 2, "both keys")
	_, err = io.Stat("none")
	must(errors.Is(err, rados.ErrNotFound), "what is not there is not found")
	seen := false
	check(io.ListObjects(func(oid string) { seen = seen || oid == "go" }))
	must(seen, "it is listed")
	_, err = io.LockExclusive("go", "lock", "cookie", "", 0, nil)
	check(err)
	_, err = io.Unlock("go", "lock", "cookie")
	check(err)

	options := rbd.NewRbdImageOptions()
	defer options.Destroy()
	check(rbd.CreateImage(io, "go-image", 16<<20, options))
	image, err := rbd.OpenImage(io, "go-image", rbd.NoSnapshot)
	check(err)
	_, err = image.WriteAt(text, 4096)
	check(err)
	check(image.Flush())
	snap, err := image.CreateSnapshot("s")
	check(err)
	_, err = image.Discard(0, 16<<20)
	check(err)
	check(snap.Rollback())
	back := make([]byte, len(text))
	_, err = image.ReadAt(back, 4096)
	check(err)
	must(bytes.Equal(back, text), "a rollback brings it back")
	check(snap.Remove())
	check(image.Close())
	check(rbd.RemoveImage(io, "go-image"))
	check(io.Delete("go"))
	fmt.Println("fine")
}
