#!/usr/bin/env bash
# Gives the users of the compose stack their passwords in Elasticsearch, and makes those that are not there yet.
# The passwords are files, since arguments and environments can be seen from outside the container.
set -euo pipefail
secrets=${SECRETS:-/run/secrets}

put() { # put PATH BODY
    curl --silent --show-error --fail --output /dev/null --retry 15 --retry-delay 2 --retry-all-errors \
        --config <(printf 'user = "elastic:%s"\n' "$(<"$secrets/elastic_password")") \
        --request PUT --header 'Content-Type: application/json' --data @- "$ELASTICSEARCH_URL/_security/user/$1" <<<"$2" ||
        {
            echo "users: Elasticsearch did not take the user $1; is the ELASTIC_PASSWORD of .env still that of elastic?" >&2
            exit 1
        }
}

user() { # user NAME SECRET: a user with the role of the same name, which `verl-ingest apply` brings
    put "$1" "{\"roles\": [\"$1\"], \"password\": \"$(<"$secrets/$2")\"}"
}

put kibana_system/_password "{\"password\": \"$(<"$secrets/kibana_password")\"}"
user verl_writer writer_password
user verl_reader reader_password
echo "users: kibana_system, verl_writer and verl_reader have the passwords of .env."
