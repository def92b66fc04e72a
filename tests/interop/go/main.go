// Interop holds mandamus against two foreign implementations: golang.org/x/mod/sumdb/{note,tlog} and filippo.io/torchwood.
//
// It reads one JSON question a line from stdin and writes one JSON answer a line: {"ok":true,…} or {"ok":false,"error":…}. It decides
// nothing by itself: every check is a call into one of the two libraries, so that an answer is theirs.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"filippo.io/torchwood"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

type question struct {
	Op     string   `json:"op"`
	Keys   []string `json:"keys"`
	Note   string   `json:"note"`
	Policy string   `json:"policy"`
	Folder string   `json:"folder"`
	URL    string   `json:"url"`
	Record []byte   `json:"record"`
	Index  int64    `json:"index"`
	Old    int64    `json:"old"`
	Size   int64    `json:"size"`
	Root   []byte   `json:"root"`
	Before []byte   `json:"before"`
	Path   [][]byte `json:"path"`
	Proof  []byte   `json:"proof"`
}

type answer map[string]any

var ops = map[string]func(question) (answer, error){
	"note":        openNote,
	"record":      checkRecord,
	"tree":        checkTree,
	"proof":       checkProof,
	"folder":      readFolder,
	"make-log":    makeLog,
	"ask-witness": askWitness,
}

func main() {
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	in.Buffer(nil, 1<<24)
	for in.Scan() {
		var q question
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		op, known := ops[q.Op]
		if !known {
			fmt.Fprintln(os.Stderr, "no such question:", q.Op)
			os.Exit(2)
		}
		said, err := op(q)
		if err != nil {
			said = answer{"ok": false, "error": err.Error()}
		} else {
			said["ok"] = true
		}
		if err := out.Encode(said); err != nil {
			os.Exit(2)
		}
	}
}

// verifiers reads log keys (0x01) and cosigners' keys (0x04).
func verifiers(keys []string) (note.Verifiers, error) {
	var list []note.Verifier
	for _, key := range keys {
		if v, err := note.NewVerifier(key); err == nil {
			list = append(list, v)
			continue
		}
		v, err := torchwood.NewCosignatureVerifier(key)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return note.VerifierList(list...), nil
}

// openNote needs every given key to have signed.
func openNote(q question) (answer, error) {
	known, err := verifiers(q.Keys)
	if err != nil {
		return nil, err
	}
	n, err := note.Open([]byte(q.Note), known)
	if err != nil {
		return nil, err
	}
	if len(n.Sigs) != len(q.Keys) {
		return nil, fmt.Errorf("%d of %d keys signed", len(n.Sigs), len(q.Keys))
	}
	c, err := torchwood.ParseCheckpoint(n.Text)
	if err != nil {
		return nil, err
	}
	return answer{"origin": c.Origin, "size": c.N, "root": c.Hash[:]}, nil
}

func hashes(raw [][]byte) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(raw))
	for i, one := range raw {
		if len(one) != tlog.HashSize {
			return nil, errors.New("a hash has 32 bytes")
		}
		out[i] = tlog.Hash(one)
	}
	return out, nil
}

func checkRecord(q question) (answer, error) {
	path, err := hashes(q.Path)
	if err != nil {
		return nil, err
	}
	return answer{}, tlog.CheckRecord(path, q.Size, tlog.Hash(q.Root), q.Index, tlog.RecordHash(q.Record))
}

func checkTree(q question) (answer, error) {
	path, err := hashes(q.Path)
	if err != nil {
		return nil, err
	}
	return answer{}, tlog.CheckTree(path, q.Size, tlog.Hash(q.Root), q.Old, tlog.Hash(q.Before))
}

func checkProof(q question) (answer, error) {
	policy, err := torchwood.ParsePolicy([]byte(q.Policy))
	if err != nil {
		return nil, err
	}
	return answer{}, torchwood.VerifyProof(policy, tlog.RecordHash(q.Record), q.Proof)
}

// readFolder opens the checkpoint of a folder of tiles, reads every entry of the log out of it, authenticated by the hash tiles, and makes
// inclusion proofs of its own for the first and the last ones.
func readFolder(q question) (answer, error) {
	raw, err := os.ReadFile(q.Folder + "/checkpoint")
	if err != nil {
		return nil, err
	}
	known, err := verifiers(q.Keys)
	if err != nil {
		return nil, err
	}
	n, err := note.Open(raw, known)
	if err != nil {
		return nil, err
	}
	c, err := torchwood.ParseCheckpoint(n.Text)
	if err != nil {
		return nil, err
	}
	reader, err := torchwood.NewTileFS(os.DirFS(q.Folder))
	if err != nil {
		return nil, err
	}
	client, err := torchwood.NewClient(reader)
	if err != nil {
		return nil, err
	}
	entries := [][]byte{}
	for index, entry := range client.AllEntries(context.Background(), c.Tree, 0) {
		if index != int64(len(entries)) {
			return nil, fmt.Errorf("entry %d came as number %d", index, len(entries))
		}
		entries = append(entries, bytes.Clone(entry))
	}
	if err := client.Err(); err != nil {
		return nil, err
	}
	if int64(len(entries)) != c.N {
		return nil, fmt.Errorf("%d entries in a log of %d", len(entries), c.N)
	}
	for index, entry := range entries {
		if index >= 300 && index < len(entries)-3 {
			continue
		}
		found, path, err := client.Entry(context.Background(), c.Tree, int64(index))
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(found, entry) {
			return nil, fmt.Errorf("entry %d is read in two ways", index)
		}
		if err := tlog.CheckRecord(path, c.N, c.Hash, int64(index), tlog.RecordHash(entry)); err != nil {
			return nil, err
		}
	}
	return answer{"size": c.N, "entries": entries}, nil
}

// -- a log made here, and a client that shows it to a witness -----------------------------------------------------------------------

type memory struct{ hashes []tlog.Hash }

func (m *memory) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, at := range indexes {
		out[i] = m.hashes[at]
	}
	return out, nil
}

type ownLog struct {
	memory
	size   int64
	signer note.Signer
}

var made *ownLog

// makeLog makes a signing key and forgets any log made before; "keys" holds the origin.
func makeLog(q question) (answer, error) {
	private, public, err := note.GenerateKey(rand.Reader, q.Keys[0])
	if err != nil {
		return nil, err
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		return nil, err
	}
	made = &ownLog{signer: signer}
	return answer{"vkey": public}, nil
}

func (l *ownLog) grow(size int64) error {
	for ; l.size < size; l.size++ {
		stored, err := tlog.StoredHashes(l.size, fmt.Appendf(nil, "record %d of the Go log", l.size), &l.memory)
		if err != nil {
			return err
		}
		l.hashes = append(l.hashes, stored...)
	}
	return nil
}

// askWitness shows the log at `size` to the witness at `url`, from `old`, and opens what comes back with the witness's key.
func askWitness(q question) (answer, error) {
	if err := made.grow(q.Size); err != nil {
		return nil, err
	}
	root, err := tlog.TreeHash(q.Size, &made.memory)
	if err != nil {
		return nil, err
	}
	text := torchwood.Checkpoint{Origin: made.signer.Name(), Tree: tlog.Tree{N: q.Size, Hash: root}}.String()
	signed, err := note.Sign(&note.Note{Text: text}, made.signer)
	if err != nil {
		return nil, err
	}
	var body strings.Builder
	fmt.Fprintf(&body, "old %d\n", q.Old)
	if q.Old > 0 {
		proof, err := tlog.ProveTree(q.Size, q.Old, &made.memory)
		if err != nil {
			return nil, err
		}
		for _, hash := range proof {
			fmt.Fprintln(&body, hash)
		}
	}
	fmt.Fprintf(&body, "\n%s", signed)
	reply, err := http.Post(q.URL+"/add-checkpoint", "text/plain", strings.NewReader(body.String()))
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	said, err := io.ReadAll(io.LimitReader(reply.Body, 1<<16))
	if err != nil {
		return nil, err
	}
	if reply.StatusCode != http.StatusOK {
		return answer{"status": reply.StatusCode, "type": reply.Header.Get("Content-Type"), "body": string(said)}, nil
	}
	witness, err := torchwood.NewCosignatureVerifier(q.Keys[0])
	if err != nil {
		return nil, err
	}
	opened, err := note.Open(append(signed, said...), note.VerifierList(witness))
	if err != nil {
		return nil, err
	}
	at, err := torchwood.CosignatureTimestamp(opened.Sigs[0])
	if err != nil {
		return nil, err
	}
	return answer{"status": reply.StatusCode, "time": at}, nil
}
