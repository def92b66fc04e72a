#!/bin/sh
# A certificate authority and one server certificate, for trying things on machines of your own; production takes its own (cert-manager, a CA).
#   deploy/nats/tls.sh FOLDER n1 n2 n3        makes FOLDER/{ca.crt,ca.key,tls.crt,tls.key}, valid for those names, localhost and 127.0.0.1
set -eu
folder=$1
shift
umask 077
mkdir -p "$folder"
cd "$folder"
if [ -e ca.key ]; then
    echo "$folder holds a certificate authority already; nothing was changed" >&2
    exit 1
fi
names="DNS:localhost,IP:127.0.0.1"
for name in "$@"; do names="$names,DNS:$name"; done
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 825 -subj "/CN=mandamus nats ca" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout ca.key -out ca.crt 2>openssl.log
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=mandamus nats" -keyout tls.key -out tls.csr 2>>openssl.log
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n' "$names" >tls.ext
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 397 -extfile tls.ext -out tls.crt 2>>openssl.log
rm -f tls.csr tls.ext openssl.log ca.srl
chmod 0644 ca.crt tls.crt
