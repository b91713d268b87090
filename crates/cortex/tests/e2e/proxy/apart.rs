//! Several services behind one port, told apart by what their clients begin with.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use super::world::{LIMIT, Named, Proxy};
use crate::node::Running;

/// Starts a server that says its name and ends, whatever it is asked, without waiting for the
/// client to speak.
fn names_itself(name: &'static str) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The thread ends with the test.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.write_all(name.as_bytes()).ok();
            stream.shutdown(std::net::Shutdown::Write).ok();
            // The stream stays until the client has read it and gone.
            std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
        }
    });
    port
}

/// Asserts the first bytes that come back for these.
fn said_to(proxy: &Proxy, bytes: &[u8], expected: &str) {
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut name = vec![0; expected.len()];
    stream.read_exact(&mut name).unwrap_or_else(|error| panic!("{expected}: {error}"));
    assert_eq!(String::from_utf8_lossy(&name), expected);
}

#[test]
fn real_clients_find_their_services() {
    let http = Named::start("the web");
    let [tls, named, ssh, other] = ["TLS", "NAMED", "SSH-2.0-test\r\n", "OTHER"].map(names_itself);
    let to = [
        format!("tls={tls}"),
        format!("tls:*.named.example={named}"),
        format!("http={}", http.port),
        format!("ssh={ssh}"),
        format!("other={other}"),
    ];
    let options: Vec<&str> = to.iter().flat_map(|to| ["--to", to]).collect();
    let proxy = Proxy::start(&options);

    proxy.site().get("/").assert_ok("the web");
    assert_eq!(http.count(), 1);
    said_to(&proxy, b"SSH-2.0-client\r\n", "SSH-2.0-test");
    said_to(&proxy, b"\x05\x01\x00", "OTHER");
    // This client waits for the server's first word.
    said_to(&proxy, b"", "SSH-2.0-test");

    // The greeting is a real one of TLS; the answer is none, and openssl says so and shows it.
    let port = proxy.port;
    let greeted = |name: &str| {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-connect", &format!("127.0.0.1:{port}"), "-debug"]);
        command.args(["-servername", name]).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut running = Running(command.spawn().expect("openssl is installed"));
        let mut said = String::new();
        running.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        said
    };
    let said = greeted("shop.example");
    assert!(said.contains("TLS") && !said.contains("NAMED"), "{said}");
    let said = greeted("git.named.example");
    assert!(said.contains("NAMED"), "{said}");

    let rows = proxy.change(&["list"]);
    assert_eq!(rows.len(), 5);
    let refused = proxy.try_change(&["add", "127.0.0.1:9"]).refused();
    refused.saying(&["--for"]);
    proxy.change(&["add", "127.0.0.1:9", "--for", "tls"]);
}
