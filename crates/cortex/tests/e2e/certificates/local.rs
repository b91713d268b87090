//! HTTPS on the machine itself: names of this machine, and ports below 1024.

use std::fs;
use std::process::Command;

use super::{Files, push, run};
use crate::machine::free_port;
use crate::node::Node;
use crate::wait::{STATE_DEADLINE, wait_for};

#[test]
fn names_of_this_machine_are_vouched_for_by_its_own_authority() {
    let port = free_port();
    let mut node = Node::start_with(&[&format!("--https=127.0.0.1:{port}")]);
    push(&node, "");
    let authority = node.path("authority.pem");
    fs::write(&authority, node.cortex(&["trust", "--print"])).expect("a file");
    let asks = |host: &str| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "60", "--cacert"]);
        command.arg(&authority).arg(format!("https://{host}:{port}/"));
        command.args(["--resolve", &format!("*:{port}:127.0.0.1")]);
        run(command, "curl")
    };
    for _ in 0..2 {
        let answer = asks("site.localhost").succeeded().stdout;
        assert!(answer.contains("Hello from"), "{answer}");
        // It vouches for nothing else, whatever the application is called elsewhere.
        for host in ["shop.example", "127.0.0.1", "a.b.localhost"] {
            assert!(!asks(host).status.success(), "{host}");
        }
        // After another start it is the same one.
        node.kill_nine();
        node.up();
        wait_for("the site", STATE_DEADLINE, || {
            let answer = asks("site.localhost");
            if answer.status.success() { Ok(()) } else { Err(format!("{answer:?}")) }
        });
    }
    let said = node.cortex(&["trust"]);
    assert!(said.contains("sudo cp") && said.contains("certutil"), "{said}");
    let said = node.cortex(&["trust", "--remove"]);
    assert!(said.contains("sudo rm") && said.contains("-D -n 'Cortex development"), "{said}");
}

#[test]
fn the_doctor_says_how_the_usual_ports_are_had() {
    let node = Node::start();
    let said = node.run(&["doctor"]).stdout;
    for port in ["port 80", "port 443"] {
        let line = said.lines().find(|line| line.contains(port));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        let is_tried = ["tried", "listens there", "need a right"].map(|way| line.contains(way));
        assert!(is_tried.contains(&true), "{line}");
    }
}

/// A service manager binds the port, and passes it on to a node that may not bind it itself.
#[test]
fn a_port_that_is_passed_on_is_served() {
    const PASS_ON: &str = "import os, socket, sys\n\
        s = socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(64)\n\
        t = os.dup(s.fileno()); os.dup2(t, 60); os.close(s.detach()); os.close(t)\n\
        os.dup2(60, 3); os.close(60)\n\
        os.environ['LISTEN_PID'] = str(os.getpid()); os.environ['LISTEN_FDS'] = '1'\n\
        os.execv(sys.argv[2], sys.argv[2:])\n";
    let mut node = Node::start();
    push(&node, "");
    node.kill_nine();
    let mut command = Command::new("python3");
    let up = node.up_command();
    command.args(["-c", PASS_ON, &node.http_port.to_string()]);
    command.arg(up.get_program()).args(up.get_args());
    node.up_by(command);
    let is_listener = |number: u32| {
        let of = format!("/proc/{}/fd/{number}", node.pid());
        fs::read_link(of).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    let socket = (3..200).filter(|number| is_listener(*number)).count();
    assert!(socket > 0, "it has sockets");
    wait_for("the site", STATE_DEADLINE, || {
        let mut command = Command::new("curl");
        command.args(["--silent", "--header", "Host: shop.example"]);
        command.arg(format!("http://127.0.0.1:{}/", node.http_port));
        let answer = run(command, "curl");
        if answer.stdout.contains("Hello from") { Ok(()) } else { Err(format!("{answer:?}")) }
    });
}

/// A certificate in a file counts before one that was brought.
#[test]
fn what_the_operator_named_by_file_wins() {
    let directory = tempfile::TempDir::with_prefix("cortex-e2e-").expect("a directory");
    let of_file = super::make(directory.path(), "file", super::EC, &["shop.example"]);
    let port = free_port();
    let [chain, key] = [&of_file.chain, &of_file.key].map(|path| path.display().to_string());
    let https = format!("--https=127.0.0.1:{port}");
    let node = Node::start_in(directory, &[&https, "--tls-cert", &chain, "--tls-key", &key]);
    push(&node, "");
    let brought: Files =
        super::make(&node.path(""), "brought", super::EC, &["shop.example", "www.example"]);
    let secured = super::Secured { node, address: "127.0.0.1", port };
    secured.add(&brought).succeeded();
    secured.shows(&brought, "www.example");
    secured.shows(&of_file, "shop.example");
}
