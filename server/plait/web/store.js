/* plait-client, MIT; built from client/js by `npm run build` */
function c(t,i=e=>e,r=Object.is){let e=()=>i(t.state,t);return{subscribe(a){let n=e(),o=t.subscribe(()=>{let s=e();r(n,s)||(n=s,a(s))});return a(n),o}}}export{c as store};
