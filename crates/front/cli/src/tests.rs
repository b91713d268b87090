//! Tests of the command line as a whole: that it is well formed.

use clap::{CommandFactory, Parser};

use super::{Cli, is_of_output, spelling};
use os::layout::DataDirectory;

#[test]
fn all_arguments_are_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn options_may_stand_before_a_subcommand() {
    for line in [
        "cortex apps --data-dir /x create shop",
        "cortex config --data-dir /x set A=b",
        "cortex config -a shop set A=b",
        "cortex config set A=b -a shop",
    ] {
        let words = line.split(' ').map(Into::into).collect();
        assert!(Cli::try_parse_from(spelling::normalise(words)).is_ok(), "{line}");
    }
}

#[tokio::test]
async fn a_node_that_hangs_up_is_no_reader_that_has_seen_enough() {
    let output = anyhow::Error::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
    assert!(is_of_output(&output.context("while printing")));
    let place = tempfile::tempdir().unwrap();
    let layout = DataDirectory::new(place.path().into(), place.path());
    std::fs::create_dir_all(layout.api_socket().parent().unwrap()).unwrap();
    let listener = tokio::net::UnixListener::bind(layout.api_socket()).unwrap();
    let hanging_up = tokio::spawn(async move {
        loop {
            drop(listener.accept().await.unwrap());
        }
    });
    let zeros = || Ok(bytes::Bytes::from(vec![0; 1 << 20]));
    let chunks = futures_util::stream::iter((0..64).map(move |_| zeros()));
    let client = client::Client::new(&layout);
    let path = "/v1/store/value?key=a";
    let sent: anyhow::Result<()> = client.upload(hyper::Method::PUT, path, chunks).await;
    assert!(!is_of_output(&sent.unwrap_err()));
    hanging_up.abort();
}
