//! Links of an application behind a wall, in its own directories, that lead to what is the node's.
//! The application itself sees nothing there; the node, which works in these directories too, must
//! not go there in its place.

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{PROCFILE, STANDARD};
use crate::fixtures::cluster::{cluster, id_of};
use crate::node::Node;
use crate::outside::Site;
use crate::project::of_files;
use crate::wait::{STATE_DEADLINE, wait_for};

const NAME: &str = "linker";
/// The directories that its settings name, and what it makes of them.
const SETTINGS: &str = "isolation = \"standard\"\npersist = [\"kept\", \"later\", \"app.db\"]\n";

/// A server that puts links to KEYS wherever it may write, before it answers; one of them takes
/// turns with a directory, as fast as it can.
const SERVER: &str = r#"
import ctypes, os, threading
from http.server import BaseHTTPRequestHandler, HTTPServer

KEYS = "KEYS_PATH"
persist, cache = os.environ["CORTEX_PERSIST"], os.environ["CORTEX_CACHE"]
libc = ctypes.CDLL(None)

def link(target, name):
    if not os.path.lexists(name):
        os.symlink(target, name)

def turn(place):
    one, other = os.path.join(place, "turning"), os.path.join(place, "turned")
    os.makedirs(one, exist_ok=True)
    for name in ("node.key", "authority.key", "key"):
        open(os.path.join(one, name), "w").write("own")
    link(KEYS, other)
    while True:
        libc.renameat2(-100, one.encode(), -100, other.encode(), 2)

os.makedirs("kept", exist_ok=True)
for place in (persist, cache, ".", "kept"):
    link(KEYS, os.path.join(place, "out"))
    link(KEYS + "/../node.id", os.path.join(place, "file"))
link(KEYS, "later")
link(KEYS, ".cortex-runtimes")
link(KEYS, os.path.join(persist, "home"))
for place in (persist, cache):
    threading.Thread(target=turn, args=(place,), daemon=True).start()

class Here(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"here")

    def log_message(self, *_):
        pass

HTTPServer((os.environ["HOST"], int(os.environ["PORT"])), Here).serve_forever()
"#;

/// Opens what is there and no link, which a directory may have become since it was listed.
fn open_plain(path: &Path) -> std::io::Result<fs::File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let flags = i32::try_from(flags).expect("two bits");
    fs::File::options().read(true).custom_flags(flags).open(path)
}

/// Returns the files below a directory with what is in them, without following a link, also where
/// the application changes them meanwhile.
fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let Ok(opened) = open_plain(directory) else { return found };
    let within = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    for entry in fs::read_dir(&within).into_iter().flatten().flatten() {
        let (path, place) = (directory.join(entry.file_name()), entry.path());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                let below = files(&place).into_iter();
                let named = |below: &Path| path.join(below.strip_prefix(&place).expect("below"));
                found.extend(below.map(|(below, content)| (named(&below), content)));
            }
            Ok(kind) if kind.is_file() => {
                let mut content = Vec::new();
                let read = open_plain(&place).and_then(|mut file| file.read_to_end(&mut content));
                found.push((path, if read.is_ok() { content } else { Vec::new() }));
            }
            _ => {}
        }
    }
    found.sort();
    found
}

fn push(node: &Node, keys: &Path, version: &str) -> Site {
    let project = node.path(NAME);
    let server = SERVER.replace("KEYS_PATH", &keys.display().to_string());
    let settings = ("cortex.toml", SETTINGS);
    of_files(&project, &[PROCFILE, ("server.py", &server), ("version", version), settings]);
    node.push(&project, NAME)
}

#[test]
fn links_of_an_application_lead_the_node_nowhere() {
    let [node, other] = cluster([&[], &[]]);
    let keys = node.data().join("cluster");
    let before = files(&keys);
    assert!(!before.is_empty(), "a member has keys");
    let identity = fs::read(node.data().join("node.id")).expect("it has one");
    push(&node, &keys, "1").get("/").assert_ok("here");
    // Another release links what persists, collects it, and looks at caches.
    push(&node, &keys, "2").get("/").assert_ok("here");
    let holder = holder(&node);
    let (from, to) = if holder == id_of(&node) { (&node, &other) } else { (&other, &node) };
    from.cortex(&["pin", NAME, &id_of(to)]);
    wait_for("it to run there", STATE_DEADLINE, || {
        let ready = node.ready(NAME, "web");
        let there = ready.iter().any(|row| row.node == id_of(to));
        if there {
            Ok(())
        } else {
            Err(format!("{ready:?}\n{}", node.cortex(&["info", "-a", NAME])))
        }
    });
    let secrets: Vec<&[u8]> = before.iter().map(|(_, content)| content.as_slice()).collect();
    let went = files(&to.data().join("apps").join(NAME));
    assert!(
        went.iter().any(|(path, _)| path.ends_with("turning/key") || path.ends_with("turned/key"))
    );
    for (path, content) in &went {
        let is_own = !content.is_empty() && !secrets.contains(&content.as_slice());
        assert!(is_own || content.is_empty(), "{} came along", path.display());
        assert!(*content != identity, "{} came along", path.display());
    }
    assert_eq!(files(&keys), before, "nothing of it was changed or removed");
    node.cortex(&["apps", "destroy", NAME, "--yes"]);
    assert_eq!(files(&keys), before, "nor when the application went");
}

fn holder(node: &Node) -> String {
    let shown = node.cortex(&["pin", NAME, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    shown["holder"].as_str().expect("one has its files").to_owned()
}

#[test]
fn a_pipe_in_place_of_a_file_holds_nobody_up() {
    let node = Node::start();
    let project = node.path(NAME);
    let server = format!(
        "import os\nos.path.exists('public/p') or os.mkfifo('public/p')\n{}",
        super::SERVER
    );
    let pushed = [PROCFILE, ("server.py", &server), ("public/a.txt", "a file"), STANDARD];
    of_files(&project, &pushed);
    of_files(
        &project,
        &[(
            "cortex.toml",
            "isolation = \"standard\"\n[[statics]]\nprefix = \"/\"\ndirectory = \"public\"\n",
        )],
    );
    let site = node.push(&project, NAME);
    site.get("/a.txt").assert_ok("a file");
    for _ in 0..3 {
        assert_ne!(site.get("/p").status, 500);
    }
    site.get("/a.txt").assert_ok("a file");
}
