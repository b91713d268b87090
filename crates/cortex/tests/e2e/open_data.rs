//! Data directories that were open to others.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::machine::free_port;
use crate::node::{Node, binary, run};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

fn open(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is this user's");
}

#[test]
fn nodes_own_data_is_closed_to_others() {
    let mut node = Node::start();
    node.down();
    let secrets = ["store", "cluster", "started.json"].map(|name| node.data().join(name));
    for path in secrets.iter().chain([&node.data()]) {
        open(path, mode(path) | 0o055);
    }
    node.up();
    for path in secrets.iter().chain([&node.data()]) {
        assert_eq!(mode(path) & 0o077, 0, "{}", path.display());
    }
    assert!(node.log().contains("data.was_open_to_others"), "{}", node.log());
}

#[test]
fn directory_of_something_else_is_refused_and_left_alone() {
    let directory = tempfile::TempDir::with_prefix("cortex-e2e-").expect("a directory");
    let letters = directory.path().join("letters");
    fs::create_dir(&letters).expect("it can be made");
    fs::write(letters.join("one.txt"), "dear").expect("it can be written");
    open(&letters, 0o755);
    for more in [&[][..], &["--detach"]] {
        let mut command = Command::new(binary());
        command.arg("up").arg("--data-dir").arg(&letters).args(more);
        command.args(["--http", &format!("127.0.0.1:{}", free_port())]);
        let needles = ["open to others (mode 755)", "chmod 700", "--data-dir"];
        run(command, "cortex up").refused().saying(&needles);
    }
    assert_eq!(mode(&letters), 0o755);
    assert_eq!(fs::read_dir(&letters).expect("it is there").count(), 1);
}
