//! Sinatra on the gem neverblock, which its Gemfile names by path, on Debian's gems and without any
//! network: one process serves two hundred requests that all wait.

use std::thread;

use super::node;
use crate::project::{copy_of_gem, of_files};

const NAME: &str = "sleepers";
/// Requests that wait at the same time. Puma's five threads would have five of them.
const SLEEPERS: usize = 200;

const GEMFILE: &str = "source 'https://rubygems.org'
gem 'sinatra'
gem 'neverblock', path: 'vendor/neverblock'
";

/// Each request sleeps a second, and on until the others have come: a busy machine may take longer
/// to bring them all. It is told how many were here at the same time.
const CONFIG_RU: &str = r##"require "sinatra/base"

class Sleepers < Sinatra::Base
  SEEN = { here: 0, most: 0 }
  PATIENCE = 20

  get "/" do
    "up"
  end

  get "/sleep/:count" do
    SEEN[:here] += 1
    SEEN[:most] = [SEEN[:most], SEEN[:here]].max
    sleep 1
    PATIENCE.times { sleep 1 if SEEN[:most] < params[:count].to_i }
    SEEN[:here] -= 1
    "#{SEEN[:most]} at once in #{Process.pid}"
  end
end

run Sleepers
"##;

#[test]
fn one_instance_of_neverblock_serves_two_hundred_requests_that_sleep() {
    let node = node();
    let project = node.path(NAME);
    of_files(&project, &[("Gemfile", GEMFILE), ("config.ru", CONFIG_RU)]);
    copy_of_gem(&project.join("vendor/neverblock"));
    let site = node.push(&project, NAME);
    site.get("/").assert_ok("up");
    let script = node.build_directory(NAME).join("vendor/gems/bin/neverblock");
    assert!(script.is_file(), "Bundler was to write {}", script.display());
    let path = format!("/sleep/{SLEEPERS}");
    let answers: Vec<_> = thread::scope(|scope| {
        let asked: Vec<_> = (0..SLEEPERS).map(|_| scope.spawn(|| site.try_get(&path))).collect();
        asked.into_iter().map(|one| one.join().expect("it asks")).collect()
    });
    let first = answers[0].as_ref().expect("an answer").body.clone();
    assert!(first.starts_with(&format!("{SLEEPERS} at once in ")), "{first}");
    for answer in answers {
        answer.expect("an answer").assert_ok(&first);
    }
    assert_eq!(node.ready(NAME, "web").len(), 1);
}
