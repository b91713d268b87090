//! What an authority is answered by a node that ordered nothing: from records alone.

use std::process::Command;

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use serde_json::json;

use super::two;
use crate::node::run;
use crate::wait::{STATE_DEADLINE, wait_for};

/// Shows the certificate that an authority is shown.
const SHOW_CHALLENGE: &str = "openssl s_client -connect $0 -servername shop.example \
    -alpn acme-tls/1 </dev/null 2>/dev/null | openssl x509 -noout -text";

#[test]
fn a_node_that_ordered_nothing_answers_the_authority() {
    let [one, two] = two("");
    let account = json!({
        "v": 1,
        "directory": "https://acme.example/directory",
        "credentials": "{}",
        "thumbprint": "a-thumb_print",
    });
    one.node.cortex(&["store", "set", "acme::account", &account.to_string()]);
    let path = "/.well-known/acme-challenge/a_token-1";
    for host in ["shop.example", "b.wild.example", "127.0.0.1"] {
        wait_for("the answer on the other node", STATE_DEADLINE, || {
            let answer = two.plain(host, path, &[]).succeeded().stdout;
            let is_it = answer.starts_with("HTTP/1.1 200")
                && answer.ends_with("\r\n\r\na_token-1.a-thumb_print");
            if is_it { Ok(()) } else { Err(answer) }
        });
    }
    assert!(two.plain("nobody.example", path, &[]).stdout.starts_with("HTTP/1.1 404"));
    assert!(two.plain("shop.example", &format!("{path}.x"), &[]).stdout.contains("404"));
    // By TLS-ALPN-01.
    let mut params = CertificateParams::new(vec!["shop.example".to_owned()]).expect("a name");
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(&[7; 32])];
    let key = KeyPair::generate().expect("a key");
    let challenge = json!({
        "v": 1,
        "certificate": params.self_signed(&key).expect("a certificate").pem(),
        "key": key.serialize_pem(),
        "expires_at": u64::MAX >> 12,
    });
    one.node.cortex(&["store", "set", "acme::challenge::shop.example", &challenge.to_string()]);
    wait_for("the challenge on the other node", STATE_DEADLINE, || {
        let mut command = Command::new("sh");
        command.arg("-c").arg(SHOW_CHALLENGE);
        command.arg(format!("{}:{}", two.address, two.port));
        let shown = run(command, "openssl s_client");
        // The object identifier of `acmeIdentifier` (RFC 8737).
        let is_it = shown.stdout.contains("1.3.6.1.5.5.7.1.31: critical");
        if is_it { Ok(()) } else { Err(format!("{shown:?}")) }
    });
    one.node.cortex(&["store", "del", "acme::account"]);
    wait_for("no answer any more", STATE_DEADLINE, || {
        let answer = two.plain("shop.example", path, &[]).stdout;
        if answer.contains("404") { Ok(()) } else { Err(answer) }
    });
}
